"""What scan finds in healthy and sick files of every format, tensor by tensor."""

import zipfile

import pytest
import torch

from benchmarks import scan as scan_benchmark
from safeops.diagnose.scanning import bytes as stored_bytes
from safeops.diagnose.scanning import elements
from safeops.diagnose.scanning.scan import scan
from tests.scan_files import HEALTHY, STEADY, WEIGHT, npy, npz, repacked, safetensors, saved
from tests.scanned import one, scanned

NAN, INF = float("nan"), float("inf")


FORMATS = {
    "pt": lambda x: saved({"x": x}),
    "legacy": lambda x: saved({"x": x}, _use_new_zipfile_serialization=False),
    "deflated pt": lambda x: repacked(saved({"x": x}), zipfile.ZIP_DEFLATED),
    "safetensors": lambda x: safetensors({"x": x}),
    "npy": lambda x: npy(x, "<f4"),
    "npy 2": lambda x: npy(x, "<f4", version=2),
    "npz": lambda x: npz({"x": npy(x, "<f4")}),
    "deflated npz": lambda x: npz({"x": npy(x, "<f4")}, zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_counts(form):
    tensor = one(scanned(FORMATS[form](WEIGHT)))
    assert tensor.dtype == "float32"
    assert tensor.shape == (2, 3)
    assert (tensor.nan, tensor.posinf, tensor.neginf) == (1, 1, 0)
    assert (tensor.subnormal, tensor.zeros) == (1, 1)
    assert (tensor.min, tensor.max) == (-2.0, 1.5)


@pytest.mark.parametrize("form", HEALTHY)
def test_healthy_files_are_quiet(form):
    report = scanned(HEALTHY[form]())
    assert report
    assert not report.findings
    assert {tensor.max for tensor in report.tensors} == {3.0} or form == "pt"


def test_numpy_and_safetensors_write_the_same(tmp_path):
    np = pytest.importorskip("numpy")
    st = pytest.importorskip("safetensors.torch")
    x = WEIGHT.numpy()
    np.save(tmp_path / "big", np.asfortranarray(x.astype(">f4")))
    np.savez_compressed(tmp_path / "z", x=x)
    st.save_file({"x": WEIGHT}, tmp_path / "w.safetensors")
    report = scan(tmp_path / "big.npy", tmp_path / "z.npz", tmp_path / "w.safetensors")
    assert len({tensor[3:] for tensor in report.tensors}) == 1
    assert report.tensors[0][4:] == (1, 1, 0, 1, 1, -2.0, 1.5, "")


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def expected(x):
    """In float64, one element at a time."""
    tiny = torch.finfo(x.dtype).tiny
    values = x.double().flatten().tolist()
    finite = [v for v in values if abs(v) < INF]
    return (
        sum(v != v for v in values),
        values.count(INF),
        values.count(-INF),
        sum(0 < abs(v) < tiny for v in values),
        values.count(0.0),
        min(finite, default=None),
        max(finite, default=None),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_of_every_kind(dtype, route):
    tiny = torch.finfo(dtype).tiny
    x = torch.randn(1000, dtype=torch.float64).to(dtype)
    x[::7], x[1::50], x[2::99], x[3::11], x[4::13] = 0.0, NAN, -INF, tiny / 2, tiny
    assert one(scanned(saved(x)))[4:11] == expected(x)


@pytest.mark.parametrize("name", FLOAT8)
def test_every_float8_value(name):
    if not hasattr(torch, name):
        pytest.skip("this torch does not have it")
    x = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
    assert one(scanned(saved({"x": x})))[4:11] == expected(x)


@pytest.mark.parametrize(
    "values",
    [
        [NAN, NAN],
        [0.0, 0.0],
        [-0.0],
        [2.0, 3.0],
        [-3.0, -2.0],
        [-2.0, 3.0, INF],
        [-3.0, 2.0, NAN],
        [INF, -INF],
        [-INF, 5.0],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extremes_are_those_of_the_finite(values, dtype):
    x = torch.tensor(values, dtype=dtype)
    assert one(scanned(saved(x)))[4:11] == expected(x)


@pytest.mark.parametrize("kind", ["normal", "positive", "negative", "growing", "with nan"])
def test_extremes_over_many_blocks(kind, monkeypatch):
    """The blocks in which no extreme is looked for hold none."""
    monkeypatch.setattr(elements, "BLOCK", 64)
    monkeypatch.setattr(stored_bytes, "CHUNK", 2048)
    for seed in range(20):
        x = torch.randn(5000, generator=torch.Generator().manual_seed(seed))
        x = {"positive": x.abs(), "negative": -x.abs(), "growing": x.cumsum(0)}.get(kind, x)
        if kind == "with nan":
            x[torch.randperm(5000)[:2000]] = NAN
        assert one(scanned(saved(x)))[4:11] == expected(x)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
)
def test_integers_have_extremes_only(dtype):
    x = (
        torch.tensor([0, 1, 1]).to(dtype)
        if dtype is torch.bool
        else torch.tensor([3, 9, 7], dtype=dtype)
    )
    tensor = one(scanned(saved(x)))
    assert (tensor.min, tensor.max) == (x.to(torch.int64).min(), x.to(torch.int64).max())
    assert (tensor.subnormal, tensor.zeros, tensor.bad) == (None, None, 0)


@pytest.mark.parametrize(("bits", "code"), [(16, "u2"), (32, "u4"), (64, "u8")])
def test_unsigned_integers(bits, code):
    top = 2**bits - 1
    data = b"".join(n.to_bytes(bits // 8, "little") for n in (5, top, 7))
    tensor = one(scanned(npy(None, f"<{code}", shape=(3,), data=data)))
    assert (tensor.dtype, tensor.min, tensor.max) == (f"uint{bits}", 5, top)


def test_complex_numbers_by_their_parts():
    x = torch.tensor([complex(1, NAN), complex(-INF, -7), complex(0, 2)])
    assert one(scanned(saved(x)))[3:11] == (3, 1, 0, 1, 0, 1, -7.0, 2.0)


@pytest.mark.parametrize("code", [">f4", ">f8", ">i2", ">c8"])
def test_the_other_byte_order(code):
    np = pytest.importorskip("numpy")
    array = np.array([[1, -2, 300], [4, 5, 6]]).astype(code)
    tensor = one(scanned(npy(None, code, shape=(2, 3), data=array.tobytes())))
    assert tensor.min == -2
    assert tensor.max == (300 if code != ">c8" else 300.0)


def test_a_big_endian_checkpoint():
    swapped = bytes(STEADY.view(torch.uint8).view(-1, 4).flip(1).flatten().tolist())
    replace = {"archive/data/0": swapped, "archive/byteorder": b"big"}
    tensor = one(scanned(repacked(saved(STEADY), replace=replace)))
    assert (tensor.min, tensor.max) == (-1.0, 3.0)


def test_views_are_read_as_they_are():
    x = torch.arange(60.0).view(6, 10)
    x[0, 9], x[5, 0] = NAN, INF
    views = {
        "all": x,
        "transposed": x.t(),
        "columns": x[:, :3],
        "steps": x[1:5:2, ::3],
        "row": x[2],
        "expanded": x[0, 9].expand(4, 5),
        "repeated rows": x[5:6].expand(3, 10),
        "empty": x[:0],
        "scalar": x[3, 3],
    }
    for content in (saved(views), saved(views, _use_new_zipfile_serialization=False)):
        report = scanned(content)
        assert [tensor.name for tensor in report.tensors] == list(views)
        for tensor in report.tensors:
            assert tensor[2:11] == (
                tuple(views[tensor.name].shape),
                views[tensor.name].numel(),
                *expected(views[tensor.name]),
            )


def test_large_views_come_in_pieces(monkeypatch):
    monkeypatch.setattr(stored_bytes, "CHUNK", 256)
    monkeypatch.setattr("safeops.diagnose.scanning.views.CHUNK", 256)
    x = torch.randn(5, 7, 90)[:, :, 1:80]
    assert one(scanned(saved(x)))[4:11] == expected(x)


def test_unknown_dtypes_of_safetensors_are_named():
    content = safetensors({"x": STEADY, "y": STEADY}, {"x": {"dtype": "F6_E2M3"}})
    x, y = scanned(content).tensors
    assert (x.dtype, y.why) == ("F6_E2M3", "")
    assert "not known" in x.why


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has none")
def test_packed_floats_are_named():
    x = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert "not known" in scanned(saved(x)).tensors[0].why


def test_complex_halves():
    x = torch.view_as_complex(torch.tensor([[1.0, -2.0], [NAN, 4.0]], dtype=torch.float16))
    assert one(scanned(saved(x)))[4:11] == (1, 0, 0, 0, 0, -2.0, 4.0)


@pytest.mark.parametrize("form", FORMATS)
def test_more_than_one_chunk(form):
    x = torch.zeros(5 << 20)
    x[-1], x[0] = -3.0, NAN
    assert one(scanned(FORMATS[form](x)))[4:11] == (1, 0, 0, 0, len(x) - 2, -3.0, 0.0)


def test_the_benchmark_runs(tmp_path):
    scan_benchmark.checkpoint(tmp_path / "model.pt", 1 << 20, torch.bfloat16)
    size = sum(tensor.numel * 2 for tensor in scan(tmp_path / "model.pt").tensors)
    assert 0 <= size - (1 << 20) < 100
    assert "times" in scan_benchmark.compared(tmp_path / "model.pt", 1)


def test_threads_of_torch_stay_as_they_were(tmp_path):
    threads = torch.get_num_threads()
    scan(tmp_path / "none")
    assert torch.get_num_threads() == threads


def test_no_paths_and_no_path():
    with pytest.raises(ValueError, match="got none"):
        scan()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (3, "got int"),
        (["a.pt", "b.pt"], r"got a list of them: write scan\(\*files\)"),
        (b"a.pt", "got bytes: see os.fsdecode"),
    ],
)
def test_what_is_no_path_is_told_at_once(path, says, tmp_path, monkeypatch):
    monkeypatch.setattr("safeops.diagnose.scanning.scan._scanned", None)
    with pytest.raises(TypeError, match=says):
        scan(tmp_path, path)
