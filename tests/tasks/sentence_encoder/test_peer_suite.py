"""sentence-transformers' own tests of its encoders with ours in their place, in the checkout BERTCORE_PEER_SUITE."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

CHECKOUT = os.environ.get("BERTCORE_PEER_SUITE")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.slow,
    pytest.mark.skipif(not CHECKOUT, reason="BERTCORE_PEER_SUITE names no checkout of sentence-transformers"),
]

DENSE = ["sentence_transformer/test_model.py", "sentence_transformer/test_compute_embeddings.py"]
UTIL = ["similarity", "retrieval", "quantization", "tensor"]
FILES = {
    "module": DENSE,
    "ours": [
        *DENSE, "sentence_transformer/evaluation", "sparse_encoder/test_model.py", "cross_encoder/test_model.py",
        "cross_encoder/evaluation", *(f"util/test_{name}.py" for name in UTIL),
    ],
}  # fmt: skip

# Names of tests that fail, by the reason; docs/coming-from.md has the reasons.
LEFT_OUT = {
    "modules, settings and methods of PyTorch": """
        load_local_without_normalize_directory router_transformers_model_property transformers_model_property
        load_with_model_kwargs get_model_kwargs parse_model_config_ignores_multi_vector_similarity
        encode_routes_through_module_call predict_routes_through_module_call predict_batch_size_1 empty_predict
        predict_low_precision_logits_upcast_to_float32 prompt_length_calculation num_labels_from_dense_scores_module
        num_labels_ignores_dense_without_scores_output config_and_model_none_without_transformer
        default_activation_fn_without_transformer detect_mlm splade_pooling_chunk_size
        load_activation_fn_from_config_custom default_activation_fn classifier_dropout_is_set load_with_revision""",
    "models of another kind are refused, not converted; no Router": """
        conversion_ignores_source_prompts_and_default_prompt_name conversion_ignores_source_similarity_fn_name
        conversion_ignores_source_prompts_and_similarity
        conversion_from_sentence_transformer_keeps_prompts_and_similarity default_to_csr num_labels_fresh_model
        csr_max_active_dims_passed_to_forward inference_free_splade inference_free_splade_max_active_dims_routing""",
    "errors and warnings in our words": """
        prompts save_load_prompts encode_quantization decode_invalid_top_k decode_invalid_input_type
        decode_invalid_ndim rank_multiple_labels""",
    "deprecated names": """
        push_to_hub rank_convert_kwargs_deprecated logger_warning""",
    "arrays are NumPy's; no model card; pairs are for cross-encoders": """
        encode_truncate model_card_save_update_model_id encode_numpy_2d_string_array""",
}


MOST = {"ours": 64, "module": 12}  # of 1,072 and 498 tests that pass with sentence-transformers 6.2.0


def passed(kind: str, files: list[str], folder: Path) -> set[str]:
    """Return the names of the tests that pass with the classes of a kind."""
    here, found = Path(__file__).parent, folder / f"{kind}.xml"
    paths = [str(here), str(here.parents[2])]
    environment = os.environ | {"PEER_SUITE": kind, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", "-p", "peer_suite", "-q", f"--junitxml={found}"]
    files = [f"tests/{file}" for file in files]
    subprocess.run([*command, "-p", "no:cacheprovider", *files], cwd=CHECKOUT, env=environment, check=False)
    cases = ElementTree.parse(found).getroot().iter("testcase")
    return {
        f"{case.get('classname')}::{case.get('name')}" for case in cases if all(c.tag == "properties" for c in case)
    }


@pytest.mark.parametrize("kind", ["ours", "module"])
def test_what_passes_with_its_own_classes_passes_with_ours(kind, tmp_path):
    own, found = (passed(each, FILES[kind], tmp_path) for each in ("own", kind))
    failed = {name.partition("::")[2].partition("[")[0].removeprefix("test_") for name in own - found}
    print(f"{kind}: {len(own & found)} of {len(own)} tests")
    assert own and failed <= set(" ".join(LEFT_OUT.values()).split()), sorted(failed)
    assert len(own - found) <= MOST[kind]
