"""Speech, text and sparse models by torch's two exporters; loops are scripted."""

from collections.abc import Callable
from typing import Final

import torch
from cases import Case, Input
from torch import Tensor, nn

SEED: Final = 20_240_229
SCRIPT: Final = "torch.onnx.export(dynamo=False), opset 17"
DYNAMO: Final = "torch.onnx.export(dynamo=True), opset 20"
SCRIPTED: Final = "torch.jit.script, torch.onnx.export(dynamo=False), opset 17"


def traced(
    build: Callable[[], nn.Module], names: tuple[str, ...], *inputs: Callable[[], Tensor]
) -> Callable[[str], None]:
    """Exports a module by the script exporter, traced or as torch.jit.script made it."""

    def export(path: str) -> None:
        torch.manual_seed(SEED)
        module = build()
        given = tuple(each() for each in inputs)
        torch.onnx.export(
            module.eval(), given, path, dynamo=False, opset_version=17, input_names=list(names)
        )

    return export


def captured(
    build: Callable[[], nn.Module], names: tuple[str, ...], *inputs: Callable[[], Tensor]
) -> Callable[[str], None]:
    """Exports a module by torch.export."""

    def export(path: str) -> None:
        torch.manual_seed(SEED)
        torch.onnx.export(
            build().eval(),
            tuple(each() for each in inputs),
            path,
            dynamo=True,
            opset_version=20,
            input_names=list(names),
            external_data=False,
            verbose=False,
        )

    return export


class Greedy(nn.Module):
    """A decoder that extends its tokens until the end token, at most 20 times."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.attend = nn.Linear(16, 16)
        self.head = nn.Linear(16, 11)

    def forward(self, memory: Tensor) -> Tensor:
        tokens = torch.zeros([1, 1], dtype=torch.int64)
        going = True
        step = 0
        while going and step < 20:
            h = self.embed(tokens)
            weights = torch.softmax(torch.matmul(self.attend(h), memory.transpose(1, 2)), -1)
            h = h + torch.matmul(weights, memory)
            logits = self.head(h[:, -1])
            token = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, token], 1)
            going = bool(token[0, 0] != 3)
            step += 1
        return tokens


class Beams(nn.Module):
    """Whisper's search: four sequences, their key-value caches moved along at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 16)
        self.key = nn.Linear(16, 16)
        self.value = nn.Linear(16, 16)
        self.head = nn.Linear(16, 13)

    def forward(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        beams = 4
        tokens = torch.ones([beams, 1], dtype=torch.int64)
        scores = torch.zeros([beams])
        keys = memory.expand(beams, memory.size(1), 16)
        values = keys + 1.0
        going = True
        step = 0
        while going and step < 12:
            h = self.embed(tokens[:, -1:])
            keys = torch.cat([keys, self.key(h)], 1)
            values = torch.cat([values, self.value(h)], 1)
            weights = torch.softmax(torch.matmul(h, keys.transpose(1, 2)), -1)
            h = torch.matmul(weights, values)
            logits = torch.log_softmax(self.head(h[:, 0]), -1)
            total = (scores.unsqueeze(1) + logits).flatten()
            scores, best = torch.topk(total, beams)
            beam = torch.div(best, 13, rounding_mode="floor")
            token = best - beam * 13
            tokens = torch.cat([tokens[beam], token.unsqueeze(1)], 1)
            keys = keys[beam]
            values = values[beam]
            going = bool((token != 2).any())
            step += 1
        return tokens, scores


class Transducer(nn.Module):
    """RNN-T: at most three symbols for each frame, until a blank."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 16)
        self.cell = nn.Linear(32, 16)
        self.joint = nn.Linear(16, 9)

    def forward(self, frames: Tensor) -> Tensor:
        tokens = torch.zeros([1], dtype=torch.int64)
        state = torch.zeros([1, 16])
        for t in range(frames.size(0)):
            going = True
            symbols = 0
            while going and symbols < 3:
                token = self.joint(torch.tanh(frames[t : t + 1] + state)).argmax(-1)
                spoken = token != 0
                tokens = torch.cat([tokens, token[spoken]])
                after = torch.tanh(self.cell(torch.cat([self.embed(token), state], 1)))
                state = torch.where(spoken.unsqueeze(1), after, state)
                going = bool(spoken[0])
                symbols += 1
        return tokens


class Ctc(nn.Module):
    """Frames to labels: neighbors that are equal and blanks are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(20, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 12)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(self.rnn(frames)[0])
        best = logits.argmax(-1)[0]
        changes = torch.cat([torch.ones(1, dtype=torch.bool), best[1:] != best[:-1]])
        kept = torch.nonzero(changes & (best != 0)).squeeze(1)
        probabilities = torch.softmax(logits[0], -1)
        return best[kept], probabilities[kept]


class Experts(nn.Module):
    """Mixtral's sparse block: each expert sees the tokens routed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(24, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(24, 48), nn.SiLU(), nn.Linear(48, 24)) for _ in range(4)
        )
        self.norm = nn.LayerNorm(24)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x).reshape(-1, 24)
        weights, chosen = torch.topk(torch.softmax(self.gate(x.reshape(-1, 24)), -1), 2)
        out = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            row, nth = torch.where(chosen == index)
            made = expert(rows[row]) * weights[row, nth, None]
            out = out.index_add(0, row, made)
        return x + out.reshape(x.shape)


class Voxels(nn.Module):
    """Points to the distinct cells that hold any, and the mean of the points of each."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(3, 16)
        self.mix = nn.Linear(16, 8)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        inside = points[(points.abs() < 4).all(1)]
        cells = torch.floor(inside).to(torch.int64) + 4
        flat = (cells[:, 0] * 8 + cells[:, 1]) * 8 + cells[:, 2]
        distinct, back = torch.unique(flat, return_inverse=True)
        features = torch.relu(self.lift(inside))
        sums = torch.zeros(distinct.shape[0], 16).index_add(0, back, features)
        return distinct, self.mix(sums)


class Pruned(nn.Module):
    """A ViT that drops patches: only those that score above a threshold go on."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 8, 8)
        self.score = nn.Linear(32, 1)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.head = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patch(image).flatten(2).transpose(1, 2)
        kept = tokens[:, (self.score(tokens)[0, :, 0] > 0)]
        x = kept
        attended = torch.softmax(torch.matmul(x, x.transpose(1, 2)), -1)
        x = x + torch.matmul(attended, x)
        x = x + self.layer.linear2(torch.relu(self.layer.linear1(x)))
        return self.head(x).sum(1)


class Spans(nn.Module):
    """Extractive answers: pairs of a start and an end that both score high."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.ends = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.ends(self.embed(ids[ids != 0]))
        starts = torch.nonzero(scores[:, 0] > 0)[:, 0]
        ends = torch.nonzero(scores[:, 1] > 0)[:, 0]
        table = scores[starts, 0].unsqueeze(1) + scores[ends, 1].unsqueeze(0)
        length = ends.unsqueeze(0) - starts.unsqueeze(1)
        good = (length >= 0) & (length < 5)
        return table[good], torch.nonzero(good)


def _scripted(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: torch.jit.script(build())  # type: ignore[no-any-return]  # torch says Any


class _Vits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import VitsConfig, VitsModel

        config = VitsConfig(
            vocab_size=30, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
            ffn_dim=32, flow_size=16, spectrogram_bins=17, upsample_initial_channel=32,
            upsample_rates=[4, 4], upsample_kernel_sizes=[8, 8], resblock_kernel_sizes=[3],
            resblock_dilation_sizes=[[1]], prior_encoder_num_flows=1,
            prior_encoder_num_wavenet_layers=1, posterior_encoder_num_wavenet_layers=1,
            duration_predictor_num_flows=1, depth_separable_num_layers=1,
            duration_predictor_filter_channels=32, use_stochastic_duration_prediction=False,
        )  # fmt: skip
        self.model = VitsModel(config)

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids, return_dict=True).waveform  # type: ignore[no-any-return]  # Any


def _ids(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(1, 9, shape)


def _noise(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


CASES: Final = {
    "greedy_decoding": Case(
        traced(_scripted(Greedy), ("memory",), _noise(1, 10, 16)),
        SCRIPTED,
        {"memory": Input((1, 10, 16), 0.1, 4)},
    ),
    "beam_search": Case(
        traced(_scripted(Beams), ("memory",), _noise(1, 10, 16)),
        SCRIPTED,
        {"memory": Input((1, 10, 16), 0.1, 4)},
    ),
    "transducer": Case(
        traced(_scripted(Transducer), ("frames",), _noise(14, 16)),
        SCRIPTED,
        {"frames": Input((14, 16), 0.1, 4)},
    ),
    "ctc": Case(
        traced(Ctc, ("frames",), _noise(1, 40, 20)), SCRIPT, {"frames": Input((1, 40, 20), 0.1, 4)}
    ),
    "experts": Case(
        traced(Experts, ("x",), _noise(1, 24, 24)), SCRIPT, {"x": Input((1, 24, 24), 0.1, 4)}
    ),
    "experts_captured": Case(
        captured(Experts, ("x",), _noise(1, 24, 24)), DYNAMO, {"x": Input((1, 24, 24), 0.1, 4)}
    ),
    "voxels": Case(
        traced(Voxels, ("points",), _noise(64, 3)), SCRIPT, {"points": Input((64, 3), 0.5, 4)}
    ),
    "pruned_patches": Case(
        captured(Pruned, ("image",), _noise(1, 3, 64, 64)),
        DYNAMO,
        {"image": Input((1, 3, 64, 64), 0.1, 2)},
    ),
    "answer_spans": Case(
        traced(Spans, ("ids",), _ids(24)), SCRIPT, {"ids": Input((24,), 0, 29, "int64")}
    ),
    "vits": Case(
        traced(_Vits, ("ids",), _ids(1, 12)), SCRIPT, {"ids": Input((1, 12), 0, 29, "int64")}
    ),
}
