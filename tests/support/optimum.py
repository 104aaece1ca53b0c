"""The optimum of a small problem by another road: CP-SAT with free starts, written from the performance model alone."""

from __future__ import annotations

from ortools.sat.python import cp_model

from crosspipe.problem import Hop, Problem


def optimum_ns(problem: Problem, time_limit_s: float = 10.0) -> int | None:
    """The least makespan of any valid schedule, fused B allowed, by CP-SAT; None if it needs longer.

    Written from the performance model alone, with free starts for blocks and messages; microbatches are in order,
    which only breaks the symmetry of identical ones.
    """
    model = cp_model.CpModel()
    n, positions = problem.microbatches, problem.positions
    horizon = 4 * sum(
        n * (c.forward_ns + max(c.input_grad_ns + c.weight_grad_ns, c.backward_ns))
        for row in problem.costs
        for c in row
    ) + 4 * n * sum(hop.delay_ns for hop in (*problem.forward_hops, *problem.backward_hops))
    for replica in (r for row in problem.data_parallel for r in row):
        horizon += replica.reduce.delay_ns + (replica.gather.delay_ns if replica.gather else 0)
    makespan = model.new_int_var(0, horizon, "makespan")
    on_stage: list[list[cp_model.IntervalVar]] = [[] for _ in range(problem.stages)]
    on_wire: dict[str, list[cp_model.IntervalVar]] = {wire: [] for wire in problem.wires}
    memory: list[list[tuple[cp_model.LinearExprT, int]]] = [[] for _ in range(problem.stages)]

    def at(name: str) -> cp_model.IntVar:
        return model.new_int_var(0, horizon, name)

    def message(ready: cp_model.LinearExprT, hop: Hop) -> cp_model.LinearExprT:
        start = at("message")
        model.add(start >= ready)
        if hop.wire is not None:
            on_wire[hop.wire].append(model.new_fixed_size_interval_var(start, hop.serialisation_ns, "message"))
        return start + hop.delay_ns

    f = [[at(f"F{p}.{k}") for k in range(n)] for p in range(positions)]
    d = [[at(f"D{p}.{k}") for k in range(n)] for p in range(positions)]
    w = [[at(f"W{p}.{k}") for k in range(n)] for p in range(positions)]
    d_end, w_end = ([[at("end") for _ in range(n)] for _ in range(positions)] for _ in "DW")
    for p in range(positions):
        stage, chunk = problem.place(p)
        cost = problem.costs[stage][chunk]
        for k in range(n):
            fused = model.new_bool_var("fused")
            on_stage[stage] += [
                model.new_fixed_size_interval_var(f[p][k], cost.forward_ns, "F"),
                model.new_optional_fixed_size_interval_var(d[p][k], cost.input_grad_ns, ~fused, "D"),
                model.new_optional_fixed_size_interval_var(w[p][k], cost.weight_grad_ns, ~fused, "W"),
                model.new_optional_fixed_size_interval_var(d[p][k], cost.backward_ns, fused, "B"),
            ]
            model.add(d_end[p][k] == d[p][k] + cost.input_grad_ns).only_enforce_if(~fused)
            model.add(w_end[p][k] == w[p][k] + cost.weight_grad_ns).only_enforce_if(~fused)
            model.add(w[p][k] >= d_end[p][k]).only_enforce_if(~fused)
            model.add(d_end[p][k] == d[p][k] + cost.backward_ns).only_enforce_if(fused)
            model.add(w_end[p][k] == d_end[p][k]).only_enforce_if(fused)
            model.add(d[p][k] >= f[p][k] + cost.forward_ns)
            model.add(makespan >= w_end[p][k])
            memory[stage] += [
                (f[p][k], cost.forward_keep_bytes),
                (d[p][k], cost.input_grad_take_bytes),
                (d_end[p][k], -cost.input_grad_release_bytes),
                (w_end[p][k], -cost.weight_grad_release_bytes),
            ]
        for k in range(n - 1):
            model.add(f[p][k] <= f[p][k + 1])
            model.add(d[p][k] <= d[p][k + 1])
    for p in range(positions):
        stage, chunk = problem.place(p)
        for k in range(n):
            if p + 1 < positions:
                forward_ns = problem.costs[stage][chunk].forward_ns
                model.add(f[p + 1][k] >= message(f[p][k] + forward_ns, problem.forward_hops[p]))
            if p > 0:
                model.add(d[p - 1][k] >= message(d_end[p][k], problem.backward_hops[p - 1]))
        if problem.data_parallel:
            replica = problem.data_parallel[stage][chunk]
            if replica.gather is not None:
                arrival = message(0, replica.gather)
                for k in range(n):
                    model.add(f[p][k] >= arrival)
            last = at("last W")
            model.add_max_equality(last, w_end[p])
            model.add(makespan >= message(last, replica.reduce))
    for intervals in (*on_stage, *on_wire.values()):
        model.add_no_overlap(intervals)
    for stage, limit in enumerate(problem.activation_limit_bytes):
        changes = [(time, change) for time, change in memory[stage] if change]
        if limit is not None and changes:
            model.add_reservoir_constraint([t for t, _ in changes], [c for _, c in changes], 0, limit)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = time_limit_s
    status = solver.solve(model)
    return round(solver.objective_value) if status == cp_model.OPTIMAL else None
