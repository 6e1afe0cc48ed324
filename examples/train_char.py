"""A Transformer on the bytes of a text, its FFNs MoE layers: python train_char.py TEXT [RECIPE]"""
import sys, time
import moe_cpp.torch, torch  # in this order: docs/pytorch.md, "Threads"
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, CONTEXT, BATCH, STEPS = 128, 4, 128, 16, 1000
if len(sys.argv) < 2:
    sys.exit(__doc__)
RECIPE = sys.argv[2] if len(sys.argv) > 2 else "mixtral"
text = torch.tensor(list(open(sys.argv[1], "rb").read()))
train, held_out = text.tensor_split([len(text) * 9 // 10])

class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.place = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.moe = moe_cpp.torch.MoE(WIDTH, WIDTH, num_experts=16, recipe=RECIPE)

    def forward(self, x: Tensor) -> Tensor:  # [batch, CONTEXT, WIDTH]
        qkv = self.qkv(self.norm1(x) + self.place).unflatten(-1, (3, HEADS, -1))
        y = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.moe(self.norm2(x))

torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(256, WIDTH), Block(), Block(), nn.Linear(WIDTH, 256))
optimizer, began = torch.optim.AdamW(model.parameters(), lr=1e-3), time.time()
for step in range(1, STEPS + 1):
    rows = train[torch.randint(len(train) - CONTEXT, [BATCH, 1]) + torch.arange(CONTEXT + 1)]
    loss = F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:])
    (loss + moe_cpp.torch.aux_loss(model)).backward()
    optimizer.step(), optimizer.zero_grad(), moe_cpp.torch.end_step(model)
    if step % 100 == 0:
        print(f"step {step}: {loss:.3f} nats a byte, {time.time() - began:.1f} s", flush=True)
model.eval().requires_grad_(False)
rows = held_out.unfold(0, CONTEXT + 1, CONTEXT)[:500]
print(f"held out: {F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:]):.3f} nats a byte")
