// An op runs where its Run says.
#include "ops/cpu/functions.h"
#ifdef MOE_CUDA
#include "ops/cuda/placed.h"
#endif

namespace moe::ops {

#ifdef MOE_CUDA
// Arguments that lie elsewhere than the op runs are brought there for the time of the call.
#define MOE_RUN_device(name, arguments) \
  placed(cuda::Side::device, MOE_LIFT(cuda::name), MOE_UNPACK arguments)
#define MOE_RUN_host(name, arguments) \
  placed(cuda::Side::host, MOE_LIFT(cpu::name), MOE_UNPACK arguments)
#define MOE_LIFT(f) [](auto&&... given) { return f(static_cast<decltype(given)>(given)...); }
#define MOE_UNPACK(...) __VA_ARGS__
#define MOE_OP(where, result, name, parameters, arguments) \
  result name parameters {                                 \
    if (run.device == nullptr) return cpu::name arguments; \
    return cuda::MOE_RUN_##where(name, arguments);         \
  }
#else
#define MOE_OP(where, result, name, parameters, arguments) \
  result name parameters { return cpu::name arguments; }
#endif
#include "ops/op_table.h"
#undef MOE_OP

GatheredRows laid_out(Run& run, const GatheredRows& rows) {
  if (run.device == nullptr || !rows.listed()) return rows;
  const Tensor copy = run.scratch.alloc(rows.x.dtype, {rows.rows(), rows.cols()});
  gather_rows(run, copy, rows.x, rows.row);
  return copy;
}

void matmul_forward_banks(Run& run, std::span<const BankOperands> banks) {
  if (run.device == nullptr) return cpu::matmul_forward_banks(run, banks);
#ifdef MOE_CUDA
  for (const BankOperands& bank : banks) {
    const BankHidden hidden = bank.hidden.value_or(BankHidden{{}, {}, Act::silu});
    cuda::placed(cuda::Side::device, MOE_LIFT(cuda::matmul_act_forward), run, hidden.y,
                 List<Operand>(std::span(bank.operands)), bank.x, bank.offsets, hidden.weight,
                 hidden.act);
  }
#endif
}

}  // namespace moe::ops
