// The kernel of a grouped product, put together from the parts of CUTLASS 3: one warp group fetches
// tiles by TMA and two multiply them (Hopper's wgmma); blocks stay and take tile after tile of all
// groups. Shapes, addresses and distances are read on the device (GroupProblemShape).
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "ops/cuda/cutlass/grouped_sm90_parts.h"

namespace moe::ops::cuda::sm90 {

using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;

// Both multiplying warp groups share a tile: the largest one, which reads least, for long sums.
struct Cooperative {
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative;
  static constexpr int kStoredRows = 128;
};

// Each has its own: one writes its tile while the other multiplies.
struct Pingpong {
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong;
  static constexpr int kStoredRows = 64;
};

// M x N x K of a block, and how many blocks along M and N share what they fetch.
template <class How, int kM, int kN, int kK, int kClusterM, int kClusterN>
struct Tiles {
  using Schedule = How;
  using Tile = cute::Shape<cute::Int<kM>, cute::Int<kN>, cute::Int<kK>>;
  using Cluster = cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>;
};

template <class D, class LayoutA, class LayoutB, class Plan>
struct Product {
  using Schedule = typename Plan::Schedule;
  using Bf16 = cutlass::bfloat16_t;
  using Shape = cute::Shape<int, int, int>;
  static constexpr int kAligned = 8, kAlignedD = 16 / sizeof(D);
  // Stored in pieces of 64 bytes a row: f32 in wider ones would cost the main loop a stage.
  using Piece = cute::Shape<cute::Int<Schedule::kStoredRows>, cute::Int<64 / sizeof(D)>>;

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Plan::Tile,
      typename Plan::Cluster, Piece, float, float, D, RowMajor*, kAlignedD, D, RowMajor*, kAlignedD,
      typename Schedule::Epilogue,
      cutlass::epilogue::fusion::LinearCombination<D, float>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, LayoutA*, kAligned, Bf16, LayoutB*,
      kAligned, float, typename Plan::Tile, typename Plan::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      typename Schedule::Mainloop>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Shape>,
                                                      Mainloop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  // The tables are filled without knowing CUTLASS's types.
  using StrideA = typename Kernel::InternalStrideA;
  using StrideB = typename Kernel::InternalStrideB;
  using StrideD = typename Kernel::InternalStrideD;
  static_assert(sizeof(Shape) == 3 * sizeof(int32_t) && sizeof(StrideA) == sizeof(int64_t) &&
                sizeof(StrideB) == sizeof(int64_t) && sizeof(StrideD) == sizeof(int64_t));

  static typename Gemm::Arguments arguments(const Launch& launch) {
    const Tables& t = launch.tables;
    auto **a = reinterpret_cast<Bf16**>(t.a), **b = reinterpret_cast<Bf16**>(t.b);
    auto** d = reinterpret_cast<D**>(t.d);
    typename Gemm::Arguments arguments;
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    arguments.problem_shape = {launch.groups, reinterpret_cast<Shape*>(t.shapes), nullptr};
    arguments.mainloop = {const_cast<const Bf16**>(a), reinterpret_cast<StrideA*>(t.lda),
                          const_cast<const Bf16**>(b), reinterpret_cast<StrideB*>(t.ldb)};
    arguments.epilogue.ptr_C = const_cast<const D**>(d);
    arguments.epilogue.ptr_D = d;
    arguments.epilogue.dC = arguments.epilogue.dD = reinterpret_cast<StrideD*>(t.ldd);
    arguments.epilogue.thread.alpha = 1;
    arguments.epilogue.thread.beta = launch.accumulate ? 1 : 0;  // 0: d is not read
    arguments.hw_info.sm_count = launch.sms;
    return arguments;
  }

  static size_t scratch(int groups, int sms) {
    return Gemm::get_workspace_size(arguments({nullptr, groups, sms, true, {}}));
  }

  static void run(const Launch& launch) {
    const auto wanted = arguments(launch);
    Gemm gemm;
    check(gemm.can_implement(wanted));
    check(gemm.initialize(wanted, launch.tables.scratch, launch.stream));
    check(gemm.run(launch.stream));
  }

 private:
  static void check(cutlass::Status status) {
    if (status == cutlass::Status::kSuccess) return;
    const cudaError_t error = cudaGetLastError();
    fail_launch(error == cudaSuccess ? cutlassGetStatusString(status) : cudaGetErrorString(error));
  }
};

}  // namespace moe::ops::cuda::sm90
