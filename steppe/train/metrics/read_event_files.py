"""Print what TensorBoard reads in a folder of event files, as JSON: {tag: [[step, value], …]}."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator


def main() -> None:
    accumulator = EventAccumulator(sys.argv[1], size_guidance={SCALARS: 0})
    accumulator.Reload()
    tags = accumulator.Tags()[SCALARS]
    print(json.dumps({tag: [[s.step, s.value] for s in accumulator.Scalars(tag)] for tag in tags}))


main()
