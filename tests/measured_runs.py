"""A measurement as if it had been made, for tests of what becomes of one."""

from onnxmem.errors import Finding
from onnxmem.measuring.measurement import MeasuredNode, Measurement

MEASUREMENT = Measurement(
    backend="onnxruntime-cpu",
    requested_peak_bytes=2_000_000,
    with_scratch_peak_bytes=2_100_000,
    pattern_block_bytes=2_200_000,
    base_bytes=0,
    in_use_peak_bytes=2_400_000,
    held_bytes=4_194_304,
    held_steady_bytes=8_388_608,
    load_peak_bytes=None,
    process_floor_bytes=46_000_000,
    process_baseline_bytes=50_000_000,
    process_peak_bytes=60_000_000,
    process_steady_bytes=59_000_000,
    device_baseline_bytes=None,
    device_peak_bytes=None,
    device_steady_bytes=None,
    device_utilization_percent=None,
    device_utilization_peak_percent=None,
    runs=3,
    seconds_per_run=(1.5, 0.25, 0.0000125),
    onnxruntime_version="1.31.1",
    num_filled=2,
    nodes=(
        MeasuredNode("conv", "Conv", "CPU", ((1, 64), ()), 1_000_000, 1, 1, 4_194_304, 100_000),
        MeasuredNode("re\nlu", "Relu", "CPU", (), None, None, None, None, None),
    ),
    findings=(Finding("made_up_weights", "2 weights not in the model's file: made up"),),
)
