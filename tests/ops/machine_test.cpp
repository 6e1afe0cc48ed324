// The machine's yardsticks are sane, and the cap on the instruction set reaches both Highway and
// oneDNN.
#include <cstdlib>
#include <dnnl.hpp>
#include <string>

#include "ops/ops.h"
#include "support/check.h"

namespace moe::test::machine_test {
namespace {

TEST(Machine, TheCapReachesBothLibraries) {
  const char* cap = std::getenv("MOE_MAX_ISA");
  const std::string name = ops::isa_name();
  moe::Run one(1);
  if (cap != nullptr && std::string(cap) == "avx512_vnni") {
    EXPECT_FALSE(ops::has_bf16_products());
  } else if (cap != nullptr && std::string(cap) == "avx2") {
    EXPECT_FALSE(name.starts_with("AVX3")) << name;
    EXPECT_FALSE(ops::has_bf16_products());
    EXPECT_TRUE(dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx2 ||
                dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::sse41);
  } else if (cap != nullptr && std::string(cap) == "baseline") {
    EXPECT_FALSE(name.starts_with("AVX")) << name;
    EXPECT_EQ(ops::measure_peak_int8(one, 0.01), 0);
    EXPECT_EQ(dnnl::get_effective_cpu_isa(), dnnl::cpu_isa::sse41);
  } else if (dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_bf16) {
    EXPECT_EQ(name, "AVX3");
    EXPECT_TRUE(ops::has_bf16_products());
  }
}

TEST(Machine, PeaksAreRates) {
  moe::Run one(1), two(2);
  const double f32 = ops::measure_peak_flops(one, DType::f32, 0.05),
               bf16 = ops::measure_peak_flops(one, DType::bf16, 0.05);
  const double bandwidth = ops::measure_read_bandwidth(two, 0.05);
  EXPECT_GT(f32, 1e9);
  EXPECT_LT(f32, 1e13);
  EXPECT_GT(bf16, 1e9);
  EXPECT_LT(bf16, 1e14);
  EXPECT_GT(bandwidth, 1e8);
  EXPECT_LT(bandwidth, 1e13);
  RecordProperty("f32_gflops", std::to_string(f32 / 1e9));
  RecordProperty("bf16_gflops", std::to_string(bf16 / 1e9));
  RecordProperty("read_gb_per_s", std::to_string(bandwidth / 1e9));
}

}  // namespace
}  // namespace moe::test::machine_test
