"""Mistakes in scripts: expressions, and what they are told.

They stand in a script that has ``PRELUDE`` at its top.
"""

from __future__ import annotations

PRELUDE = """
import torch
import elastic_runtime as elastic
from elastic_runtime import DataLoader, JobConfig, State, sample_rng

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.zeros(8, 2))

def train_in(place):
    state = State(model=model)
    state.checkpoints(place, every=1)
    elastic.run(lambda world: None, state, in_place=False)
"""

_INTERVAL = "is not understood; give steps (10, '10 steps'), a time ('30s', '5m', '1h') or both"
_EACH = "each sample once, or DataLoader(replacement=True)"
_COMMIT = "commit() outside of elastic.run … call it there, after optimizer.step()"
_FORM = "does not take the one argument that elastic.run calls it with … (world)"

# Settings of checkpoints that are otherwise as they should be, and of a JobConfig.
_CHECKPOINTS = {
    'every="often"': f"every='often' {_INTERVAL}",
    "every=0": f"every=0 {_INTERVAL}",
    'every="-5m"': f"every='-5m' {_INTERVAL}",
    'max_age="soon"': f"max_age='soon' {_INTERVAL}",
    'snapshots="x"': f"snapshots='x' {_INTERVAL}",
    "keep=0": "keep=0 would keep nothing; give at least 1",
    'keep="3"': "keep='3' is a str: give a whole number, or None for all",
    'keep_every="x"': "say with keep= how many",
    'on_error="no"': "on_error='no' is not understood; give 'continue' or 'raise'",
}
_JOB = {
    "min_nodes=0": "min_nodes=0: a job needs at least one node",
    "min_nodes=3, max_nodes=2": "the minimum 3 is above the maximum 2",
    "workers=0": "workers=0: a node runs at least one worker",
    "max_restarts=-1": "max_restarts=-1: it cannot be negative",
    "metrics_port=99999": "metrics_port=99999: it must lie between 0 and 65535",
}
# Where it saves, if that is no directory.
_PLACES = {
    "f": "File exists; choose a directory",
    "f/c": "/f/c: Not a directory; choose a directory, part of the path is a file",
    "/proc/c": "cannot save checkpoints in /proc/c … must be on storage that all nodes share",
    "": "the checkpoint directory is empty: name one",
    "x3://b/c": "Protocol not known: x3; check the URL",
}

SCRIPTS = (
    *((f'State().checkpoints("c", {key})', said) for key, said in _CHECKPOINTS.items()),
    *((f'JobConfig(None, None, "x", {key})', said) for key, said in _JOB.items()),
    *((f'train_in("{place}")', said) for place, said in _PLACES.items()),
    # State
    ("State(hook=lambda: 3)", "State(hook=...) is a function without state_dict"),
    ("State(model=model, at=3)", "'at' is a name of State's own; take another one"),
    ("State(model=model).world", "is not known before elastic.run or state.resumed()"),
    ("State(model=model).save()", "save() needs state.checkpoints(...) before training"),
    ('State().at("often", print)', "at('often', ...) is not understood; give steps ('50 steps')"),
    ('State().at("end", 3)', "needs a function, and this is a int"),
    ('[State().at("end", f) for f in ()] or State().at("", print)', "is not understood"),
    ('elastic.load("nowhere", State(model=model))', "there is not a checkpoint in"),
    ("State(model, optimizer)", "name the objects: State(model=model, optim=optim)"),
    ("State(shadow=model)", "switches of a State; give the object another name"),
    ("State(model=model, step=model)", "'step' is a name of State's own; take another one"),
    ("State(model=model).commit()", _COMMIT),
    ("State(model=model).nothing", "this State has no 'nothing'; set it first: state.nothing = 0"),
    # elastic.run
    ("elastic.run(lambda: None, State(model=model))", _FORM),
    ("elastic.run(lambda world, more: None, State(model=model))", _FORM),
    ("elastic.run(None, State(model=model))", "elastic.run needs the function that trains"),
    ("elastic.run(lambda world: None, State(optim=optimizer))", "give the State the module"),
    (
        "elastic.run(lambda world: None, State(model=model), in_place=False)",
        'nothing is saved that they could begin with: call state.checkpoints("runs/x"',
    ),
    # Data
    ("DataLoader(data, 0)", "global_batch_size=0: give a whole number of samples, at least 1"),
    ("DataLoader(data, 4, at_once=0)", "at_once=0: give a whole number of samples, at least 1"),
    ("DataLoader([], 4)", "the data set is empty; give at least one sample"),
    ("DataLoader(iter([1]), 4)", "read what can only be read in order with elastic.ShardedStream"),
    ("DataLoader(data, 9, drop_last=True)", "take a smaller batch, or do not drop"),
    ("DataLoader(data, 4, replacement=True)", "is about an order= of your own; give one"),
    ("DataLoader(data, 4, shuffle=False, order=print)", "give that, or order="),
    ("DataLoader(data, 4, batch_size=4)", "decides on batch_size; remove the option"),
    ("DataLoader(data, 4, in_order=False, num_workers=1)", "in_order=False … remove the option"),
    ("next(DataLoader(data, 4, order=lambda epoch, g: [0, 0, 1]).steps())", _EACH),
    ("next(DataLoader(data, 4, order=lambda epoch, g: [9]).steps())", "give numbers below 8"),
    ("next(DataLoader(data, 4, order=lambda epoch, g: []).steps())", "give at least one sample"),
    (
        'next(DataLoader(data, 4, order=lambda epoch, g: ["a"]).steps())',
        "something else than whole numbers; return the indices",
    ),
    ("DataLoader(data, 4).steps(epochs=-1)", "steps(epochs=-1): give a whole number from 0 on"),
    ("sample_rng(3)", "call it in the __getitem__ of a data set … or give it seed= and epoch="),
)
