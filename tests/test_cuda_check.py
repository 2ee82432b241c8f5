"""The table of what ptxas says, and what of it is a failure."""

import pytest

from tests import cuda_check

LOG = """
[1/2] nvcc -Xcompiler=-Wall,-Wno-deprecated-warning: -c elementwise.cu
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN7safeops5plainIfEEvPT_' for 'sm_100'
ptxas info    : Function properties for _ZN7safeops5plainIfEEvPT_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 512 bytes smem
ptxas info    : Compile time = 3.089 ms
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN7safeops5plainIfEEvPT_' for 'sm_80'
ptxas info    : Function properties for _ZN7safeops5plainIfEEvPT_
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : Compile time = 5.584 ms
"""
NAME = "_ZN7safeops5plainIfEEvPT_"


def run(tmp_path, log, capsys):
    (tmp_path / "log").write_text(log)
    code = cuda_check.main([tmp_path / "log"])
    return code, *capsys.readouterr()


def test_usage_of_each_kernel_and_processor():
    assert cuda_check.usages(LOG) == {
        (NAME, "sm_100"): (10, 0, 0, 512),
        (NAME, "sm_80"): (12, 8, 0, 0),
    }


def test_table(monkeypatch):
    monkeypatch.setattr(cuda_check, "titles", lambda names: dict.fromkeys(names, "plain<float>"))
    table = list(cuda_check.aligned(list(cuda_check.table(cuda_check.usages(LOG)))))
    assert table == ["              sm_80         sm_100", "plain<float>  12 0 stack 8  10 512"]


def test_all_is_well(tmp_path, capsys):
    code, out, err = run(tmp_path, LOG, capsys)
    assert code == 0
    assert "10 512" in out
    assert err == ""


@pytest.mark.parametrize("moved", ["0 bytes spill stores", "0 bytes spill loads"])
def test_spills_fail(moved, tmp_path, capsys):
    code, out, err = run(tmp_path, LOG.replace(moved, moved.replace("0", "8"), 1), capsys)
    assert code == 1
    assert "SPILLS 8" in out
    assert "spills registers on sm_100: 8 bytes" in err


@pytest.mark.parametrize(
    "line",
    [
        'csrc/cuda/rows.cu(8): warning #177-D: variable "n" was declared but never referenced',
        "  csrc/module.cpp:12:7: warning: unused variable 'n' [-Wunused-variable]",
        "ptxas warning : Value of threads per SM is out of range",
        "nvcc warning : incompatible redefinition for option 'std'",
        "/usr/bin/ld: warning: kernels.o: missing .note.GNU-stack section",
    ],
)
def test_warnings_fail(line, tmp_path, capsys):
    code, _, err = run(tmp_path, LOG + line + "\n" + line, capsys)
    assert code == 1
    assert err == f"FAILED: {line.strip()}\n"


def test_a_log_without_kernels_fails(tmp_path, capsys):
    code, _, err = run(tmp_path, "ninja: no work to do.", capsys)
    assert code == 1
    assert "names no kernel" in err


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void safeops::(anonymous namespace)::rows<float, 4>(float*)", "rows<float, 4>"),
        ("void f<g<(safeops::Dtype)3>, 1>(safeops::Part<2>)", "f<g<bfloat16>, 1>"),
        ("_ZN7safeops", "_ZN7safeops"),
    ],
)
def test_short_names(name, short):
    assert cuda_check.short(name) == short
