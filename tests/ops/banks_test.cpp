// Products of several banks in one call: the bits of one call after the other, with few rows and
// many, of floats, blocks and both.
#include "ops/banks.h"

#include <array>
#include <numeric>

#include "support/check.h"
#include "tensor/quant.h"

namespace moe::test::banks_test {
namespace {

constexpr int64_t kIn = 64, kExperts = 5;

// [E,O,64] in `dtype`
Param bank(Arena& memory, int64_t experts, int64_t out, DType dtype, uint64_t seed) {
  Param w = draw_param(memory, {experts, out, kIn}, seed);
  if (dtype == DType::f32) return w;
  const Tensor from = w.value;
  w.value = memory.alloc(dtype, {experts, out, kIn});
  quantise(w.value.data, from.as<float>(), dtype, from.numel());
  return w;
}

// Row r of `rows` at expert r mod E, as many of each as there are.
std::vector<int64_t> offsets_of(int64_t rows) {
  std::vector<int64_t> out(kExperts + 1, 0);
  for (int64_t e = 0; e < kExperts; ++e)
    out[static_cast<size_t>(e) + 1] =
        out[static_cast<size_t>(e)] + rows / kExperts + (e < rows % kExperts);
  return out;
}

TEST(Banks, ManyAtOnceHaveTheBitsOfOneAfterTheOther) {
  for (const auto& [first, second] : {std::pair{DType::f32, DType::f32},
                                      {DType::bf16, DType::bf16},
                                      {DType::q8_0, DType::q4_1},
                                      {DType::q4_1, DType::f32}})
    for (const DType compute : {DType::f32, DType::bf16})
      for (const int64_t rows : {0, 1, 2, 3, 5, 17, 90})
        for (const int threads : {1, 2, 3}) {
          moe::Run run(threads);
          Param gate = bank(run.saved, kExperts, 33, first, 1),
                up = bank(run.saved, kExperts, 33, first, 2),
                wide = bank(run.saved, 1, 300, second, 3);
          const Tensor x = draw(run.saved, compute, {std::max<int64_t>(rows, 1), kIn}, 4);
          std::vector<int32_t> token(static_cast<size_t>(rows));
          for (size_t r = 0; r < token.size(); ++r)
            token[r] = static_cast<int32_t>((r * 7) % token.size());
          const std::vector<int64_t> offsets = offsets_of(rows);
          const std::array<int64_t, 2> all = {0, x.rows()};
          const ops::GatheredRows picked(x, std::span<const int32_t>(token.data(), token.size()));
          std::array<Tensor, 6> out;
          for (size_t i = 0; i < 6; ++i)
            out[i] =
                run.saved.alloc(compute, {i % 3 == 2 ? x.rows() : rows, i % 3 == 2 ? 300 : 33});
          if (rows > 0) ops::matmul_forward(run, {{gate, out[0]}, {up, out[1]}}, picked, offsets);
          ops::matmul_forward(run, out[2], x, wide, all);
          std::vector<ops::BankOperands> banks = {{{{wide, out[5]}}, x, all}};
          if (rows > 0)
            banks.insert(banks.begin(), {{{gate, out[3]}, {up, out[4]}}, picked, offsets});
          ops::matmul_forward_banks(run, banks);
          for (size_t i = rows > 0 ? 0 : 2; i < 3; ++i)
            EXPECT_TRUE(same_bits(out[i], out[i + 3]))
                << name_of(first) << " " << name_of(second) << " " << name_of(compute) << ", "
                << rows << " rows, " << threads << " threads, output " << i;
        }
}

}  // namespace
}  // namespace moe::test::banks_test
