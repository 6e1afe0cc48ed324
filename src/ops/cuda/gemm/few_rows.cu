// A warp has some outputs, whose weights come through shared memory in parts, so that many are on
// their way at a time: every byte of them is read once and in order. Weights of one matrix do not
// wait for what is launched before: their first parts are asked for while that ends.
#include "ops/cuda/gemm/few_rows.h"

#include "ops/cuda/copies.h"
#include "ops/cuda/gemm/few_rows_formats.h"
#include "ops/cuda/gemm/few_rows_task.h"

namespace moe::ops::cuda {
namespace {

// A warp's weights on their way through shared memory: parts of kOuts rows, as many at a time as
// have room.
template <class B>
class Stream {
 public:
  static constexpr int kBlocks = B::kPart / B::kNumbers, kRow = kBlocks * B::kBytes + B::kBehind;

  __host__ __device__ static int stages(int64_t in) {
    const int64_t parts = (in + B::kPart - 1) / B::kPart;
    return static_cast<int>(parts < B::kStages ? parts : B::kStages);
  }
  __host__ __device__ static int64_t size(int64_t in) { return stages(in) * B::kOuts * kRow; }

  __device__ Stream(char* shared, int64_t in) : shared_(shared), in_(in), stages_(stages(in)) {}
  __device__ void begin(const FewTask<B::kOuts>& task) {
    for (int part = 0; part < stages_; ++part) bring(task, part, part);
  }
  // f(the rows of each part, its number, its blocks), part after part.
  template <class F>
  __device__ void each(const FewTask<B::kOuts>& task, F f) {
    int stage = 0;
    for (int64_t part = 0; part * B::kPart < in_; ++part) {
      await();
      __syncwarp();
      f([&](int o) { return row(stage, o); }, part, blocks(part));
      __syncwarp();
      bring(task, part + stages_, stage);
      stage = stage + 1 == stages_ ? 0 : stage + 1;
    }
  }

 private:
  __device__ char* row(int stage, int o) const { return shared_ + (stage * B::kOuts + o) * kRow; }
  __device__ int blocks(int64_t part) const {
    const int64_t left = in_ / B::kNumbers - part * kBlocks;
    return static_cast<int>(left < 0 ? 0 : left < kBlocks ? left : kBlocks);
  }
  // Nothing beyond the last part, so that each part is a group of copies.
  __device__ void bring(const FewTask<B::kOuts>& task, int64_t part, int stage) const {
    const int64_t first = part * kBlocks * B::kBytes;
    const int bytes = task.own > 0 ? blocks(part) * B::kBytes : 0;
#pragma unroll
    for (int o = 0; o < B::kOuts; ++o)
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x) % kWarp * 16; i < bytes; i += kWarp * 16)
        copy_piece(row(stage, o) + i, task.row[o] + first + i, true);
    close_copies();
  }
  // Until the oldest group is there.
  __device__ void await() const {
    if (stages_ == 1) await_copies<0>();
    else if (stages_ == 2) await_copies<1>();
    else if (stages_ == 3) await_copies<2>();
    else await_copies<3>();
  }

  char* shared_;
  int64_t in_;
  int stages_;
};

template <class B, int kRows>
__global__ void __launch_bounds__(B::kMostWarps* kWarp)
    few_rows_kernel(const __grid_constant__ Few few) {
  using Row = typename B::Row;
  char* shared = static_cast<char*>(dynamic_shared());
  const int64_t warp = threadIdx.x / kWarp, in = few.in, size = Row::size(in), r = blockIdx.y;
  const int64_t warps = blockDim.x / kWarp;
  Stream<B> stream(shared + kRows * size + warp * Stream<B>::size(in), in);
  FewTask<B::kOuts> task(few, blockIdx.x * warps + warp, 0);
  int expert = 0;
  const auto meet = [&] {
    expert = expert_of(few, r);
    if (expert > 0) task.go_to(few, expert);
    if (expert >= 0) stream.begin(task);
  };
  if (few.settled) meet();
  begin_in_turn();
  if (!few.settled) meet();
  if (expert < 0) return;  // as do all threads of the block
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const char* x = x_of(few, row_of(few, r, i));
    for (int64_t g = threadIdx.x; g < in / Row::kMade; g += blockDim.x)
      Row(shared + i * size, in).make(x, g);
  }
  __syncthreads();
  if (task.own == 0) return;
  constexpr int kOwn = B::kOuts * B::kLanes / kWarp;  // outputs of a lane
  const int lane = static_cast<int>(threadIdx.x) % kWarp, first = lane / B::kLanes * kOwn;
  float sum[kOwn][kRows] = {};
  stream.each(task, [&](auto row, int64_t part, int blocks) {
#pragma unroll 2
    for (int b = lane % B::kLanes; b < blocks; b += B::kLanes)
#pragma unroll
      for (int o = 0; o < kOwn; ++o) {
        const B block(row(first + o), b);
#pragma unroll
        for (int i = 0; i < kRows; ++i)
          sum[o][i] += block.times(Row(shared + i * size, in), part * Stream<B>::kBlocks + b);
      }
  });
  float total[B::kOuts][kRows];
  add_lanes<B::kLanes>(total, sum);
  finish<kRows, B::kOuts>(few, task, r, total);
}

// As many warps a block as give each multiprocessor one, more where there is plenty: they share the
// rows that they meet.
template <class B, int kRows>
void launch_blocks(Run& run, const Few& few) {
  const int64_t rows = few.offsets == nullptr ? 1 : few.rows, tasks = few.tasks(B::kOuts),
                each = blocks_for(rows * tasks, multiprocessors(run));
  const int64_t warps = each >= 4 * B::kMostWarps ? B::kMostWarps : std::clamp<int64_t>(each, 1, 4);
  const auto shared =
      static_cast<size_t>(kRows * B::Row::size(few.in) + warps * Stream<B>::size(few.in));
  allow_shared(run, few_rows_kernel<B, kRows>, shared);
  launch(run, few_rows_kernel<B, kRows>,
         dim3(blocks_for(tasks, warps), static_cast<unsigned>(rows)),
         dim3(static_cast<unsigned>(warps * kWarp)), shared, few);
}

template <class B>
void launch_rows(Run& run, const Few& few) {
  if (few.offsets != nullptr || few.rows == 1) launch_blocks<B, 1>(run, few);
  else launch_blocks<B, kFewDense>(run, few);
}

template <DType format>
void launch_bytes(Run& run, const Few& few, DType x) {
  if (x == DType::bf16) launch_rows<ByteBlocks<format, bf16>>(run, few);
  else launch_rows<ByteBlocks<format, float>>(run, few);
}

// Rows and weights whose parts are whole pieces of 16 bytes, and that fit in shared memory.
bool fits(const Run& run, DType w, DType x, int64_t rows, int64_t in) {
  constexpr int64_t kOfWeights = int64_t{80} << 10;  // bytes, at most
  if (rows * in * 4 + kOfWeights > static_cast<int64_t>(most_shared(run))) return false;
  if (is_quantised(w)) return few_rows_read(w, in);
  return in % kStep == 0 && (w == DType::f32 || (w == DType::bf16 && x == DType::bf16));
}
bool begins_at_16(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.row_bytes % 16 == 0;
}

Few arguments(Run& run, const FewRows& all) {
  Few few{};
  few.count = static_cast<int>(std::ssize(all.matrices));
  for (int m = 0; m < few.count; ++m) {
    const FewMatrix& of = all.matrices[static_cast<size_t>(m)];
    few.matrix[m] = {
        static_cast<const char*>(of.w.data), of.w.row_bytes, of.y.cols(),
        static_cast<char*>(of.y.data),       of.y.row_bytes, of.y.dtype == DType::bf16};
  }
  few.x = static_cast<const char*>(all.x.x.data);
  few.x_row = all.x.x.row_bytes;
  few.row = all.x.listed() ? on_device(run, all.x.row) : nullptr;
  few.rows = static_cast<int>(all.x.rows());
  few.in = all.x.cols();
  few.offsets = all.groups.offsets;
  few.groups = static_cast<int>(all.groups.count);
  few.add = all.add;
  const bool chosen_before =
      all.groups.offsets == nullptr || !written_last(run, all.groups.offsets);
  few.settled = all.settled && chosen_before;
  if (!all.hidden) return few;
  few.hidden = static_cast<char*>(all.hidden->y.data);
  few.hidden_row = all.hidden->y.row_bytes;
  few.weight = all.hidden->weight.empty() ? nullptr : all.hidden->weight.as<float>();
  few.act = all.hidden->act;
  return few;
}

}  // namespace

bool few_rows_read(DType format, int64_t in) {
  return (format == DType::q8_0 || format == DType::q4_0) && in % 256 == 0;
}

bool few_rows_product(Run& run, const FewRows& all) {
  const DType w = all.matrices[0].w.dtype, x = all.x.x.dtype;
  const int64_t rows = all.x.rows();
  if (rows == 0 || rows > (all.groups.offsets == nullptr ? kFewDense : kFewGrouped) ||
      std::ssize(all.matrices) > kMostFew || !begins_at_16(all.x.x))
    return false;
  const int64_t beside = all.groups.offsets != nullptr || rows == 1 ? 1 : kFewDense;
  if (!fits(run, w, x, beside, all.x.cols())) return false;
  for (const FewMatrix& m : all.matrices)
    if (m.w.dtype != w || !begins_at_16(m.w)) return false;
  const Scratch scratch(run);
  const Few few = arguments(run, all);
  if (w == DType::q8_0) launch_bytes<DType::q8_0>(run, few, x);
  else if (w == DType::q4_0) launch_bytes<DType::q4_0>(run, few, x);
  else if (w == DType::bf16) launch_rows<FloatBlocks<bf16, bf16>>(run, few);
  else if (x == DType::bf16) launch_rows<FloatBlocks<float, bf16>>(run, few);
  else launch_rows<FloatBlocks<float, float>>(run, few);
  return true;
}

}  // namespace moe::ops::cuda
