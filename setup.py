"""The optional C part of amble. Where it cannot be built, everything works without it, only slower."""

import sys
import sysconfig

from setuptools import Extension, setup

# The stable ABI is CPython's, and there is none yet for interpreters without the global lock.
HAS_STABLE_ABI = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "amble._native",
            ["src/amble/_native.c"],
            depends=["src/amble/_page.h"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,
        )
    ]
    if HAS_STABLE_ABI
    else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_STABLE_ABI else {},
)
