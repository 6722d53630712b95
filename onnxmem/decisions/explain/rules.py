"""The rules of thumb term by term: on a model, and on the worked example that spread one of them.

``explained_rules`` gives the values of a model; ``WORKED_EXAMPLE`` derives every number that the
example's pages print. It is published at https://datascience.stackexchange.com/questions/12649, the
lecture is CS231n (Stanford), the factor of the file at
https://stats.stackexchange.com/questions/224175.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.rules_of_thumb import FORMULAS, Term, model_size, terms_of
from onnxmem.program.program import Category

_MIB: Final = 2**20
_PARAMETERS: Final = 19_072_984
_ACTIVATIONS: Final = 532_752
_INPUTS: Final = 9_000
_BATCH: Final = 128
_FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of thumb in words."""

    key: str
    """Its name in ``RulesOfThumb``."""
    name: str
    counts: str
    """What its factors stand for."""
    leaves_out: str

    @property
    def formula(self) -> str:
        """The rule as text."""
        return FORMULAS[self.key]


RULES: Final = (
    Rule(
        "twice_file_bytes",
        "twice the file",
        "weights as they are loaded, and as much again for everything else, at batch 1",
        "gradients, optimizer state, and activations, which grow with the batch",
    ),
    Rule(
        "three_weights_bytes",
        "three times the weights",
        "weights, gradients and one optimizer state (momentum, RMSprop)",
        "activations, and the second state of Adam",
    ),
    Rule(
        "four_and_a_half_weights_bytes",
        "4.5 times the weights",
        "weights, gradients and the two states of Adam (4 x), and half as much for everything else",
        "the batch: activations are a fixed share of the weights, whatever the batch",
    ),
    Rule(
        "three_params_two_activations_bytes",
        "the lecture's sum",
        "weights, gradients and momentum; an activation and its gradient for each sample; inputs",
        "the second state of Adam, what operators and libraries allocate beside their outputs; "
        "gradients of activations are released during backward and never all alive",
    ),
    Rule(
        "batch_times_tensors_and_params_bytes",
        "the batch times all tensors",
        "inputs, activations and parameters, each once for each sample",
        "gradients and optimizer state; parameters exist once, not once for each sample",
    ),
    Rule(
        "inputs_activations_and_gradients_bytes",
        "inputs and activations twice",
        "an activation and its gradient for each sample, and inputs",
        "weights, their gradients and optimizer state; gradients of activations are never all "
        "alive",
    ),
)


@dataclass(frozen=True, slots=True)
class ExplainedRule:
    """A rule on a model."""

    rule: Rule
    terms: tuple[Term, ...]
    num_bytes: int | None


@dataclass(frozen=True, slots=True)
class ExplainedRules:
    """All rules on a model, and what its training step takes."""

    batch: int
    rules: tuple[ExplainedRule, ...]
    weight_bytes: int | None
    step_bytes: int | None
    """The peak of the training step."""
    step_parts: Mapping[Category, int]
    """What is alive at that peak, by category."""


def explained_rules(analysis: Analysis) -> ExplainedRules:
    """The rules on the model of an analysis with a training step."""
    size = model_size(analysis.request.model, analysis.results)
    terms, training = terms_of(size), analysis.training
    return ExplainedRules(
        size.batch,
        tuple(
            ExplainedRule(rule, terms[rule.key], getattr(analysis.rules_of_thumb, rule.key))
            for rule in RULES
        ),
        size.weight_bytes,
        None if training is None else training.peak_bytes,
        MappingProxyType({} if training is None else training.live_by_category()),
    )


@dataclass(frozen=True, slots=True)
class PrintedTerm:
    """A term as a page prints it: rounded to hundredths of MiB, then multiplied."""

    label: str
    factors: tuple[int, ...]
    copies: int = 1
    """How often it is added after rounding."""

    @property
    def num_bytes(self) -> int:
        """The exact product, without the copies."""
        product = 1
        for factor in self.factors:
            product *= factor
        return product

    @property
    def hundredths(self) -> int:
        """The product in hundredths of MiB, rounded half up."""
        # In integers, because floats do not round every half up.
        return (200 * self.num_bytes + _MIB) // (2 * _MIB)


@dataclass(frozen=True, slots=True)
class PrintedSum:
    """A number of the worked example, from its terms."""

    printed: str
    """As it was published, in MiB (the page writes MB)."""
    title: str
    terms: tuple[PrintedTerm, ...]

    @property
    def num_bytes(self) -> int:
        """The sum without rounding."""
        return sum(term.num_bytes * term.copies for term in self.terms)

    @property
    def mebibytes(self) -> str:
        """The sum of the rounded terms, which is what was printed."""
        return hundredths_text(sum(term.hundredths * term.copies for term in self.terms))


def hundredths_text(hundredths: int) -> str:
    """Hundredths as a decimal number.

    >>> hundredths_text(22469)
    '224.69'
    """
    return f"{hundredths // 100:,}.{hundredths % 100:02}"


_MOMENTUM: Final = PrintedTerm("parameters x 3", (_PARAMETERS, _FLOAT_BYTES, 3))
_INPUT: Final = PrintedTerm("inputs x batch", (_BATCH, _INPUTS, _FLOAT_BYTES))
WORKED_EXAMPLE: Final = (
    PrintedSum(
        "224.69",
        "activations once, of one sample",
        (PrintedTerm("activations", (_ACTIVATIONS, _FLOAT_BYTES)), _MOMENTUM, _INPUT),
    ),
    PrintedSum(
        "260.13",
        "added for a gradient of each activation of each sample",
        (PrintedTerm("activations x batch", (_ACTIVATIONS, _BATCH, _FLOAT_BYTES)),),
    ),
    PrintedSum(
        "742.34",
        "activations and their gradients, of each sample",
        (
            PrintedTerm("activations x 2", (_ACTIVATIONS, 2, _FLOAT_BYTES), copies=_BATCH),
            _MOMENTUM,
            _INPUT,
        ),
    ),
)
"""532,752 activations and 9,000 inputs of a sample, 19,072,984 parameters, batch 128, float32."""
EXAMPLE_SIZE: Final = (
    f"{_ACTIVATIONS:,} activations and {_INPUTS:,} inputs of a sample, {_PARAMETERS:,} parameters, "
    f"batch {_BATCH}, {_FLOAT_BYTES} bytes each"
)
KERAS: Final = (
    "the rule is copied without a derivation, and this is one reading of it. "
    "With Adam, weights, gradients and two states are 4 x weights; temporaries and the activations "
    "of a small batch are the rest. It holds where activations are a small part, and nowhere else. "
    "What nvidia-smi shows of Keras is another figure: TensorFlow reserves nearly the whole GPU at "
    "its start unless memory growth is on (tf.config.experimental.set_memory_growth)."
)
