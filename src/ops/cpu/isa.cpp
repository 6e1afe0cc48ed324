#include "ops/cpu/isa.h"

#include "ops/cpu/targets.h"

#include <hwy/highway.h>

#include <cstdlib>
#include <dnnl.hpp>
#include <string_view>

#include "core/error.h"

namespace moe::ops {

namespace {

void apply_cap() {
  const char* cap = std::getenv("MOE_MAX_ISA");
  if (cap == nullptr || *cap == 0) return;
#if defined(__aarch64__)
  fail_usage("MOE_MAX_ISA is '{}'; it caps instruction sets of x86-64, and ARM64 has one: unset it",
             cap);
#else
  // in Highway a better target has a lower bit
  const std::string_view name = cap;
  if (name == "avx512") {
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
  } else if (name == "avx512_vnni") {
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_vnni);
  } else if (name == "avx2") {
    hwy::DisableTargets(int64_t{HWY_AVX2} - 1);
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
  } else if (name == "baseline") {
    hwy::DisableTargets(int64_t{HWY_AVX2} * 2 - 1);
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::sse41);
  } else {
    fail_usage(
        "MOE_MAX_ISA is '{}'; the caps known are 'avx512', which leaves AMX out, 'avx512_vnni', "
        "which leaves products of bf16 out, 'avx2' and 'baseline', which leaves AVX2 out",
        cap);
  }
#endif
}

}  // namespace

int64_t usable_targets() {
  static const int64_t usable = [] {
    apply_cap();
#if defined(__aarch64__)
    // Highway would warn where there is no AES (Raspberry Pi 4), which no kernel uses.
    return int64_t{HWY_STATIC_TARGET};
#else
    const int64_t targets = hwy::SupportedTargets();
    hwy::GetChosenTarget().Update(targets);  // asking has taken the cap away
    return targets;
#endif
  }();
  return usable;
}

void choose_isa() { usable_targets(); }

}  // namespace moe::ops
