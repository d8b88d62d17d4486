"""speculators' own trainer takes its steps on the CPU, from a folder that `extract` made.

Runs with the speculators that is on the path, whichever it is. Arguments: the folder, the
verifier's folder, the number of epochs, "fp8" or anything else, report file.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, LlamaConfig

LONGEST = 512
LR = 3e-3
LOSSES: list[float] = []
# The trainers put everything on the device of this rank.
DEVICE = "cpu"


class KeepLosses(logging.Handler):
    """The trainer tells its metrics to a logger."""

    def emit(self, record: logging.LogRecord) -> None:
        train = record.msg.get("train") if isinstance(record.msg, dict) else None
        if train:
            LOSSES.append(
                next(train[key] for key in ("loss", "loss_sum", "loss_0") if key in train)
            )


def draft_config(verifier: Path) -> LlamaConfig:
    config = AutoConfig.from_pretrained(verifier).to_dict()
    return LlamaConfig(**{**config, "num_hidden_layers": 1})


def old_trainer(folder: Path, verifier: Path, epochs: int, save: str) -> tuple[Any, int]:
    """0.3 and 0.4."""
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from speculators.train.data import Eagle3SampleFileDataset, create_collate_fn
    from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2
    from speculators.train.trainer import Trainer, TrainerConfig
    from torch.utils.data import DataLoader

    decoder = draft_config(verifier)
    decoder._attn_implementation = "simple_flex_attention"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=decoder,
        draft_vocab_size=decoder.vocab_size,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_config(decoder, name_or_path=str(verifier)),
        ),
    )
    whole = torch.ones(decoder.vocab_size, dtype=torch.bool)
    model = Eagle3DraftModel(config, whole, torch.zeros(decoder.vocab_size, dtype=torch.long))
    data = Eagle3SampleFileDataset(max_len=LONGEST, datapath=str(folder))
    sampler = MultipackDistributedBatchSamplerV2(
        batch_max_length=LONGEST, lengths=data.approx_lengths, num_replicas=1, rank=0
    )
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=create_collate_fn(LONGEST))
    options = {"local_rank": DEVICE, "train_call_kwargs": {"ttt_steps": 1}}
    told = {name: value for name, value in options.items() if name in TrainerConfig._fields}
    return Trainer(model, TrainerConfig(LR, epochs, save, **told), loader), len(data)


def new_trainer(folder: Path, verifier: Path, epochs: int, save: str, kind: str) -> Any:
    """0.9, its own loaders included."""
    from hs_connectors import HiddenStatesBackend
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.models.eagle3.data import shift_batch
    from speculators.train import trainer as module
    from speculators.train.dataloader import create_train_val_loaders

    described = json.loads((folder / "data_config.json").read_text())
    *targets, _ = described["hidden_states"]["vllm_layer_ids"]
    model = Eagle3DraftModel.from_training_args(
        verifier_config=draft_config(verifier),
        verifier_name_or_path=str(verifier),
        target_layer_ids=targets,
        draft_vocab_size=draft_config(verifier).vocab_size,
        norm_before_residual=True,
        ttt_steps=1,
        draft_attn_impl="eager",
    )
    backend = HiddenStatesBackend.registry["fp8" if kind == "fp8" else "file"]
    loader, _ = create_train_val_loaders(
        data_path=str(folder),
        total_seq_len=LONGEST,
        hidden_states_dtype=torch.float32,
        transfer=backend.from_train_args(SimpleNamespace(hidden_states_path=None), str(folder)),
        vllm_endpoint="",
        on_missing="raise",
        verifier_name_or_path=str(verifier),
        request_timeout=1,
        max_retries=0,
        generation_validation_retries=0,
        max_consecutive_generation_failures=1,
        hidden_size=draft_config(verifier).hidden_size,
        num_target_layers=len(targets),
        num_workers=0,
        prefetch_factor=1,
        preprocess=shift_batch,
    )
    module.get_local_rank = lambda: DEVICE
    torch.accelerator.synchronize = lambda: None  # its stop watch asks for an accelerator
    options = module.TrainerConfig(
        LR,
        epochs,
        save,
        train_call_kwargs=Eagle3DraftModel.get_trainer_kwargs(
            loss_fn="kl_div", loss_implementation="eager", ttt_steps=1, ttt_step_loss_decay=1.0
        )[0],
        hidden_states_dtype=torch.float32,
    )
    return module.Trainer(model, options, loader), len(loader.dataset)


def main(folder: Path, verifier: Path, epochs: int, kind: str, report: Path) -> None:
    import specvllm_compat  # noqa: F401  # lets old releases be imported with new transformers
    from speculators.train import data

    logger = logging.getLogger("speculators.metrics")
    logger.addHandler(KeepLosses())
    logger.setLevel(logging.INFO)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as save:
        if hasattr(data, "Eagle3SampleFileDataset"):
            trainer, samples = old_trainer(folder, verifier, epochs, save)
        else:
            trainer, samples = new_trainer(folder, verifier, epochs, save, kind)
        for epoch in range(epochs):
            trainer.train_epoch(epoch)
    report.write_text(json.dumps({"samples": samples, "losses": LOSSES}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
