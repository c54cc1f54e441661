"""TorchRec on q7x2: torchrun --nproc-per-node 2 with_torchrec.py

Each rank has a part of an embedding's rows. All ranks together learn what one process learns.
"""

import small
import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel, ShardingEnv
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan

ROWS = 1000


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        table = EmbeddingBagConfig(ROWS, 32, "products", feature_names=["p"])
        self.bags = EmbeddingBagCollection([table])
        self.dense = small.model()

    def forward(self, bags: KeyedJaggedTensor) -> torch.Tensor:
        return self.dense(self.bags(bags)["p"])


def train(model: nn.Module, first: int, count: int) -> None:
    """In each step, the `count` samples from `first` on; a sample has three rows."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(small.STEPS):
        samples = torch.arange(first, first + count) + step * ranks * small.BATCH
        rows = (3 * samples[:, None] + torch.arange(3)).flatten() * 389 % ROWS
        bags = KeyedJaggedTensor(["p"], rows, lengths=torch.full((count,), 3))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(bags), samples % 8).backward()
        optimizer.step()


dist.init_process_group("q7x2")
rank, ranks = dist.get_rank(), dist.get_world_size()
model, alone, sharder = Recommender(), Recommender(), EmbeddingBagCollectionSharder()
how = {"products": row_wise()}
by_rows = construct_module_sharding_plan(model.bags, how, sharder, ranks, ranks, "cpu")
env, cpu = ShardingEnv.from_process_group(dist.group.WORLD), torch.device("cpu")
model = DistributedModelParallel(model, env, cpu, ShardingPlan({"bags": by_rows}), [sharder])
(shard,) = model.state_dict()["bags.embedding_bags.products.weight"].local_shards()
begin, length = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
rows = alone.bags.embedding_bags.products.weight.detach()[begin : begin + length]
shard.tensor.copy_(rows)  # TorchRec has drawn others

train(model, rank * small.BATCH, small.BATCH)
train(alone, 0, ranks * small.BATCH)
torch.testing.assert_close(shard.tensor, rows)
torch.testing.assert_close([*model.module.dense.parameters()], [*alone.dense.parameters()])
small.check("TorchRec", model.module.dense)
dist.destroy_process_group()
