#include "ops/cpu/isa.h"

#include <hwy/highway.h>

#include <cstdlib>
#include <dnnl.hpp>
#include <string_view>

#include "core/error.h"

namespace moe::ops {

void choose_isa() {
  static const bool chosen = [] {
    const char* cap = std::getenv("MOE_MAX_ISA");
    if (cap == nullptr || *cap == 0) return true;
    if (std::string_view(cap) != "avx2") fail_usage("MOE_MAX_ISA is '{}'; the only cap known is 'avx2'", cap);
    hwy::DisableTargets(static_cast<int64_t>(HWY_AVX2 - 1));  // in Highway a better target has a lower bit
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
    return true;
  }();
  (void)chosen;
}

}  // namespace moe::ops
