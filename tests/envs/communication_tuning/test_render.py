"""Pictures, text and the timeline of one iteration."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest


@pytest.fixture(params=["allreduce", "ps"])
def env(request):
    env = gym.make(
        "dtgym/CommunicationTuning-v0", architecture=request.param, render_mode="ansi"
    ).unwrapped
    env.reset(seed=0)
    return env


def test_text_names_the_configuration(env):
    env.step(0)
    lines = env.render().splitlines()
    assert (
        lines[0] == f"vgg16, {env.dynamics.parameters.architecture}, bytescheduler: step 1 of 100"
    )
    assert lines[1].startswith("partition 1 MB") and lines[1].endswith("credit 1 MB")


def test_timeline_ends_when_the_iteration_does(env):
    env.step(31)
    info = env.step(31)[4]
    trace = env.timeline()
    assert json.loads(json.dumps(trace)) == trace
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    end_us = max(event["ts"] + event["dur"] for event in spans)
    assert end_us == pytest.approx(info["iteration_time_s"] * 1e6, rel=1e-9)
    uploaded = sum(event["args"]["bytes"] for event in spans if event["cat"] == "upload")
    assert uploaded == pytest.approx(553430176)


def test_timeline_of_another_mechanism_is_its_own():
    env = gym.make("dtgym/CommunicationTuning-v0", mechanism="ddp_buckets").unwrapped
    env.reset(seed=0)
    info = env.step(0)[4]
    spans = [event for event in env.timeline()["traceEvents"] if event["ph"] == "X"]
    uploads = [event for event in spans if event["cat"] == "upload"]
    assert len(uploads) < 15
    end_us = max(event["ts"] + event["dur"] for event in spans)
    assert end_us == pytest.approx(info["iteration_time_s"] * 1e6, rel=1e-9)


def test_pictures_change_with_the_episode():
    env = gym.make("dtgym/CommunicationTuning-v0", render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.step(0)
    assert before.shape == (480, 640, 3) and not np.array_equal(before, env.render())
