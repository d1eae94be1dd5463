"""An independent slow scheduler for tests: the rules literally, sorting at every event.

It shares no code and no idea with the kernels: plain lists, no heaps, no incremental ranking, no
alarms. At every instant it completes, admits, changes levels, sorts all active jobs and fills.
"""

from __future__ import annotations

import math


def place(rule, gang, free, size):
    """Nodes for a gang as {node: gpus}, or None."""
    nodes = range(len(free))
    if gang == 0:
        return {}
    if rule == "pooled":
        return {-1: gang} if sum(free) >= gang else None
    if rule == "spread":
        left, taken = list(free), {}
        for _ in range(gang):
            widest = max(nodes, key=lambda n: (left[n], -n))
            if left[widest] == 0:
                return None
            left[widest] -= 1
            taken[widest] = taken.get(widest, 0) + 1
        return taken
    fits = [n for n in nodes if free[n] >= gang]
    if fits:
        order = {
            "consolidate": lambda n: (free[n], n),
            "best_fit": lambda n: (free[n], n),
            "worst_fit": lambda n: (-free[n], n),
            "first_fit": lambda n: n,
        }[rule]
        return {min(fits, key=order): gang}
    taken, missing = {}, gang
    if rule == "consolidate":
        if gang <= max(size):
            return None
        while True:
            whole = [
                n for n in nodes if n not in taken and free[n] == size[n] <= missing and size[n]
            ]
            if not whole or not missing:
                break
            node = min(whole, key=lambda n: (-size[n], n))
            taken[node] = size[node]
            missing -= size[node]
        if missing:
            part = [n for n in nodes if n not in taken and free[n] >= missing]
            if not part:
                return None
            taken[min(part, key=lambda n: (free[n], n))] = missing
        return taken
    if sum(free) < gang:
        return None
    while missing:
        rest = [n for n in nodes if n not in taken and free[n]]
        node = rest[0] if rule == "first_fit" else min(rest, key=lambda n: (-free[n], n))
        if rule == "best_fit" and free[node] >= missing:
            node = min((n for n in rest if free[n] >= missing), key=lambda n: (free[n], n))
        taken[node] = min(missing, free[node])
        missing -= taken[node]
    return taken


def run_queue(jobs, sizes, policy, rule, skip):
    """Schedules without preemption.

    Args:
        jobs: List of (id, submit ms, duration ms, gpus).
        sizes: GPUs of each node.
        policy: fifo or sjf.
        rule: Placement.
        skip: Whether jobs may overtake.

    Returns:
        id -> (start, finish).
    """
    free = list(sizes)
    future = sorted(jobs, key=lambda j: (j[1], j[0]))
    queue, running, times = [], [], {}
    while future or running:
        now = min([j[1] for j in future[:1]] + [end for end, _, _ in running])
        for entry in [r for r in running if r[0] == now]:
            running.remove(entry)
            for node, gpus in entry[2].items():
                free[node] += gpus
        while future and future[0][1] == now:
            queue.append(future.pop(0))
        queue.sort(key=lambda j: ((j[2],) if policy == "sjf" else ()) + (j[1], j[0]))
        for job in list(queue):
            taken = place(rule, job[3], free, sizes)
            if taken is None:
                if skip:
                    continue
                break
            queue.remove(job)
            for node, gpus in taken.items():
                free[node] -= gpus
            assert min(free) >= 0 or rule == "pooled"
            times[job[0]] = (now, now + job[2])
            running.append((now + job[2], job[0], taken))
    assert not queue
    return times


def run_preemptive(jobs, total, policy, *, thresholds=(), step_ms=1000, cost_ms=None):
    """Schedules a pool with preemption: everything is sorted anew at every event.

    Returns:
        id -> (first start, finish, preemptions, waiting time).
    """
    cost_ms = cost_ms or {}
    future = sorted(jobs, key=lambda j: (j[1], j[0]))
    active = {}  # id -> dict
    done = {}
    now = None
    while future or active:
        times = [j[1] for j in future[:1]]
        for job in active.values():
            if job["on"]:
                times.append(now + job["left"])
            if policy == "las" and job["level"] < len(thresholds):
                bound = thresholds[job["level"]]
                if job["service"] > bound:
                    times.append(step_ms * (now // step_ms + 1))
                elif job["on"] and job["gpus"]:
                    beyond = now + (bound - job["service"]) // job["gpus"] + 1
                    times.append(step_ms * math.ceil(beyond / step_ms))
        later = min(times)
        if now is not None:
            for job in active.values():
                if job["on"]:
                    job["left"] -= later - now
                    job["service"] += (later - now) * job["gpus"]
                else:
                    job["waited"] += later - now
        now = later
        for name in [n for n, j in active.items() if j["on"] and j["left"] == 0]:
            job = active.pop(name)
            done[name] = (job["start"], now, job["preempted"], job["waited"])
        while future and future[0][1] == now:
            name, submit, duration, gpus = future.pop(0)
            active[name] = dict(
                name=name, submit=submit, left=duration, gpus=gpus, on=False, start=None,
                preempted=0, service=0, level=0, waited=0,
            )  # fmt: skip
        if now % step_ms == 0:
            for job in active.values():
                while job["level"] < len(thresholds) and job["service"] > thresholds[job["level"]]:
                    job["level"] += 1
        key = {
            "srtf": lambda j: j["left"],
            "srsf": lambda j: j["left"] * j["gpus"],
            "las": lambda j: j["level"],
        }[policy]
        room = total
        for job in sorted(active.values(), key=lambda j: (key(j), j["submit"], j["name"])):
            fits = job["gpus"] <= room
            if fits:
                room -= job["gpus"]
                if job["start"] is None:
                    job["start"] = now
            elif job["on"]:
                job["preempted"] += 1
                job["left"] += cost_ms.get(job["name"], 0)
            job["on"] = fits
    return done


def run_backfill(jobs, total, policy, estimate_ms):
    """EASY or conservative backfilling on a pool, planned from scratch at every event.

    Args:
        jobs: List of (id, submit ms, duration ms, gpus).
        total: GPUs.
        policy: easy or conservative.
        estimate_ms: id -> estimated duration.

    Returns:
        id -> (start, finish).
    """
    future = sorted(jobs, key=lambda j: (j[1], j[0]))
    queue, running, times = [], [], {}
    while future or running:
        now = min([j[1] for j in future[:1]] + [r[0] for r in running])
        running = [r for r in running if r[0] != now]
        while future and future[0][1] == now:
            queue.append(future.pop(0))

        def begin(job, now=now, running=running):
            queue.remove(job)
            times[job[0]] = (now, now + job[2])
            running.append((now + job[2], max(now + estimate_ms[job[0]], now + 1), job[3]))

        # (begin, thought end, gpus) of everything that holds GPUs now or later
        booked = [(now, max(end, now + 1), gpus) for _, end, gpus in running]

        def room(at, booked=booked):
            return total - sum(g for b, e, g in booked if b <= at < e)

        def earliest(job, booked=booked, room=room, now=now):
            length = max(estimate_ms[job[0]], 1)
            for at in sorted({now} | {e for _, e, _ in booked}):
                inside = {at} | {t for b, e, _ in booked for t in (b, e) if at < t < at + length}
                if all(room(t) >= job[3] for t in inside):
                    return at
            raise AssertionError

        reserved = False
        for job in list(queue):
            if policy == "easy" and reserved:
                # The head is booked for ever from its reserved start on.
                length = estimate_ms[job[0]]
                ends = [t for t in {now} | {b for b, _, _ in booked} if now <= t < now + length]
                fits = room(now) >= job[3] and all(room(t) >= job[3] for t in ends)
                if fits:
                    booked.append((now, max(now + length, now + 1), job[3]))
                    begin(job)
                continue
            at = earliest(job)
            if at == now and (policy == "conservative" or not reserved):
                booked.append((at, at + max(estimate_ms[job[0]], 1), job[3]))
                begin(job)
            elif policy == "easy":
                booked.append((at, math.inf, job[3]))
                reserved = True
            else:
                booked.append((at, at + max(estimate_ms[job[0]], 1), job[3]))
    assert not queue
    return times


def run_preemptive_on_nodes(jobs, sizes, policy, rule, cost_ms):
    """Preemptive ranking with placement on nodes, literally.

    All active jobs are ranked and laid out on an empty cluster in that order. A running job stays
    where it is if its places are left; a waiting one takes what nobody holds in fact, else what
    nobody ranked before it has taken. Who lost his places is preempted.

    Returns:
        id -> (first start, finish, preemptions).
    """
    future = sorted(jobs, key=lambda j: (j[1], j[0]))
    active, done, now = {}, {}, None
    while future or active:
        on = [job for job in active.values() if job["at"] is not None]
        later = min([j[1] for j in future[:1]] + [now + job["left"] for job in on])
        for job in on:
            job["left"] -= later - now
        now = later
        for name in [n for n, j in active.items() if j["at"] is not None and j["left"] == 0]:
            job = active.pop(name)
            done[name] = (job["start"], now, job["preempted"])
        while future and future[0][1] == now:
            name, submit, duration, gpus = future.pop(0)
            active[name] = dict(
                name=name, submit=submit, left=duration, gpus=gpus, at=None, start=None, preempted=0
            )
        weight = {"srtf": lambda j: 1, "srsf": lambda j: j["gpus"]}[policy]
        held = list(sizes)
        for job in active.values():
            for node, gpus in (job["at"] or {}).items():
                held[node] -= gpus
        lifted = list(sizes)
        ranked = sorted(
            active.values(), key=lambda j: (j["left"] * weight(j), j["submit"], j["name"])
        )
        for job in ranked:
            taken = job["at"]
            if taken is not None and any(lifted[n] < g for n, g in taken.items()):
                for node, gpus in taken.items():
                    held[node] += gpus
                job["at"], taken = None, None
                job["preempted"] += 1
                job["left"] += cost_ms
                continue
            if taken is None:
                taken = place(rule, job["gpus"], [max(f, 0) for f in held], sizes)
                if taken is None:
                    taken = place(rule, job["gpus"], lifted, sizes)
                if taken is None:
                    continue
                for node, gpus in taken.items():
                    held[node] -= gpus
                job["at"] = taken
                job["start"] = now if job["start"] is None else job["start"]
            for node, gpus in taken.items():
                lifted[node] -= gpus
        assert min(held) >= 0
    return done
