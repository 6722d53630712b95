"""What is no dense tensor of numbers: sequences, optionals, maps, strings, sparse weights."""

from typing import Final

import onnx
from graphs import model_of

from runtime_kinds.kind import Kind, header, kinds_of

_LEARNING: Final = header(9, ir_version=4, ml=1)
_TREES: Final = """nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2],
    nodes_featureids = [1, 0, 0],
    nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values = [0.5, 0.0, 0.0],
    nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0]"""


def sparse_weight() -> onnx.ModelProto:
    """Store a weight as a sparse tensor."""
    model = model_of(f"{header(13)} agraph (float[5,7] x) => (y) {{ y = Add(x, w) }}")
    sparse = model.graph.sparse_initializer.add(dims=[5, 7])
    values = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1, 2])
    sparse.values.CopyFrom(values)
    places = onnx.helper.make_tensor("p", onnx.TensorProto.INT64, [2], [3, 11])
    sparse.indices.CopyFrom(places)
    return model


def sparse_output() -> onnx.ModelProto:
    """Make a sparse weight an output."""
    model = sparse_weight()
    model.graph.output.append(onnx.helper.make_tensor_value_info("w", 1, [5, 7]))
    return model


def sparse_constant() -> onnx.ModelProto:
    """Store it in a node."""
    model = sparse_weight()
    sparse = onnx.SparseTensorProto()
    sparse.CopyFrom(model.graph.sparse_initializer[0])
    del model.graph.sparse_initializer[:]
    node = onnx.helper.make_node("Constant", [], ["w"], sparse_value=sparse)
    model.graph.node.insert(0, node)
    return model


def sparse_product() -> onnx.ModelProto:
    """Multiply a sparse input, which cannot be fed with an array."""
    model = model_of(f"""{header(13, ms=1)} agraph (float[7,3] x) => (y) {{
        y = com.microsoft.SparseToDenseMatMul(w, x) }}""")
    value = model.graph.input.add(name="w")
    value.type.sparse_tensor_type.elem_type = onnx.TensorProto.FLOAT
    for dim in (5, 7):
        value.type.sparse_tensor_type.shape.dim.add(dim_value=dim)
    return model


KINDS: Final[tuple[Kind, ...]] = (
    Kind("a sparse weight", sparse_weight),
    Kind("a sparse weight put out", sparse_output, runs=False),
    Kind("a sparse constant", sparse_constant),
    Kind("a sparse input", sparse_product, runs=False),
    *kinds_of(header(13), {
        "a sequence made and read": """agraph (float[2,5] a, float[3,5] b) => (y, n)
            <int64 k = {1}> {
            s = SequenceConstruct(a, b)  y = SequenceAt(s, k)  n = SequenceLength(s) }""",
        "a sequence of alike": """agraph (float[2,5] a, float[2,5] b) => (y) <int64 k = {1}> {
            s = SequenceConstruct(a, b)  t = SequenceErase(s, k)  y = SequenceAt(t, z)
            z = Constant <value_int = 0> () }""",
        "a sequence joined": """agraph (float[2,5] a, float[3,5] b) => (y) {
            s = SequenceConstruct(a, b)  y = ConcatFromSequence <axis = 0> (s) }""",
        "a sequence stacked": """agraph (float[2,5] a, float[2,5] b) => (y) {
            s = SequenceConstruct(a, b)  y = ConcatFromSequence <axis = 0, new_axis = 1> (s) }""",
        "a sequence split": """agraph (float[7,5] a) => (y) <int64 k = {2}, int64 at = {0}> {
            s = SplitToSequence <axis = 0> (a, k)  y = SequenceAt(s, at) }""",
        "strings put in order": """agraph (string[3] x) => (y) {
            y = StringNormalizer <is_case_sensitive = 1> (x) }""",
        "words counted": """agraph (string[7] x) => (y) { y = TfIdfVectorizer <mode = "TF",
            min_gram_length = 1, max_gram_length = 1, max_skip_count = 0, ngram_counts = [0],
            ngram_indexes = [0, 1, 2], pool_strings = ["a", "b", "c"]> (x) }""",
        "strings joined": """agraph (string[2,3] x) => (y) { y = Identity(x) }""",
    }, {"x": ["a", "b", "c", "d", "e", "f", "g"]}, {
        "a sequence made and read": "y",
        "a sequence joined": "y",
        "a sequence stacked": "y",
        "a sequence split": "y",
    }),
    *kinds_of(_LEARNING, {
        "a classifier of trees": f"""agraph (float[5,3] x) => (l, p) {{
            l, p = ai.onnx.ml.TreeEnsembleClassifier <{_TREES}, class_treeids = [0, 0],
                class_nodeids = [1, 2], class_ids = [0, 1], class_weights = [1.0, 1.0],
                classlabels_int64s = [0, 1, 2], post_transform = "NONE"> (x) }}""",
        "a classifier and its map": """agraph (float[5,3] x) => (l, m) {
            l, p = ai.onnx.ml.LinearClassifier <coefficients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
                intercepts = [0.0, 0.0], classlabels_ints = [0, 1]> (x)
            m = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (p) }""",
        "trees that tell a number": f"""agraph (float[5,3] x) => (y) {{
            y = ai.onnx.ml.TreeEnsembleRegressor <{_TREES}, target_treeids = [0, 0],
                target_nodeids = [1, 2], target_ids = [0, 1], target_weights = [1.0, 2.0],
                n_targets = 2> (x) }}""",
        "a scaler and a classifier of vectors": """agraph (float[5,2] x) => (l, p) {
            s = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (x)
            l, p = ai.onnx.ml.SVMClassifier <classlabels_ints = [0, 1], coefficients = [1.0, -1.0],
                kernel_params = [0.1, 0.0, 3.0], kernel_type = "RBF", rho = [0.1],
                support_vectors = [1.0, 2.0, 3.0, 4.0], vectors_per_class = [1, 1]> (s) }""",
        "vectors of three classes": """agraph (float[5,2] x) => (l, p) {
            l, p = ai.onnx.ml.SVMClassifier <classlabels_strings = ["a", "b", "c"],
                coefficients = [1.0, -1.0, 0.5, 1.0, -1.0, 0.5], kernel_params = [0.1, 0.0, 3.0],
                kernel_type = "RBF", rho = [0.1, 0.2, 0.3], vectors_per_class = [1, 1, 1],
                support_vectors = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]> (x) }""",
        "vectors of three classes, likely": """agraph (float[5,2] x) => (l, p) {
            l, p = ai.onnx.ml.SVMClassifier <classlabels_ints = [3, 5, 7],
                coefficients = [1.0, -1.0, 0.5, 1.0, -1.0, 0.5], kernel_params = [0.1, 0.0, 3.0],
                kernel_type = "RBF", rho = [0.1, 0.2, 0.3], vectors_per_class = [1, 1, 1],
                prob_a = [0.1, 0.2, 0.3], prob_b = [0.1, 0.2, 0.3],
                support_vectors = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]> (x) }""",
        "a classifier of lines": """agraph (float[5,2] x) => (l, p) {
            l, p = ai.onnx.ml.LinearClassifier <coefficients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
                intercepts = [0.0, 0.0, 0.0], classlabels_strings = ["a", "b", "c"],
                post_transform = "SOFTMAX"> (x) }""",
        "labels": """agraph (int64[5] x) => (y) { y = ai.onnx.ml.LabelEncoder <
            classes_strings = ["a", "b"]> (x) }""",
        "one hot of categories": """agraph (int64[5] x) => (y) { y = ai.onnx.ml.OneHotEncoder <
            cats_int64s = [0, 1, 2], zeros = 1> (x) }""",
        "binarized": """agraph (float[5,3] x) => (y) {
            b = ai.onnx.ml.Binarizer <threshold = 0.5> (x)
            y = ai.onnx.ml.FeatureVectorizer <inputdimensions = [3, 3]> (b, x) }""",
    }),
    *kinds_of(header(None, ir_version=4, ml=1), {
        "machine learning alone": """agraph (float[5,3] x) => (y) {
            y = ai.onnx.ml.Normalizer <norm = "L1"> (x) }""",
    }),
)  # fmt: skip
