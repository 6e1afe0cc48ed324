#include "ops/cuda/cublas/dense_product.h"

#include <cublas_v2.h>

#include "core/error.h"

namespace moe::ops::cuda {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail("cuBLAS failed at {}: {}", what, cublasGetStatusString(status));
}

// On the device's one stream, behind all kernels so far: stream_of() starts those that are only
// noted down.
cublasHandle_t handle_of(const Run& run) {
  const cudaStream_t stream = stream_of(run);
  static const cublasHandle_t handle = [&] {
    cublasHandle_t made = nullptr;
    check(cublasCreate(&made), "its start");
    check(cublasSetStream(made, stream), "the choice of a stream");
    return made;
  }();
  return handle;
}

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

int distance(const Tensor& t) {
  return static_cast<int>(t.row_bytes / static_cast<int64_t>(size_of(t.dtype)));
}

}  // namespace

// cuBLAS counts down columns: a row-major matrix is its transpose there, so c^T = b' a' with the
// operands in the other order.
bool dense_product(Run& run, Form form, Tensor c, Tensor a, Tensor b, bool add, int64_t shares) {
  if (a.dtype != b.dtype || (c.dtype != DType::f32 && c.dtype != a.dtype)) return false;
  const float one = 1, keep = add ? 1.0f : 0.0f;
  const int rows = static_cast<int>(c.rows() / shares), cols = static_cast<int>(c.cols()),
            deep = static_cast<int>((form == Form::dw ? a.rows() : a.cols()) / shares);
  if (rows == 0 || cols == 0) return true;
  const auto op_b = form == Form::forward ? CUBLAS_OP_T : CUBLAS_OP_N,
             op_a = form == Form::dw ? CUBLAS_OP_T : CUBLAS_OP_N;
  if (shares > 1) {
    const auto step = [&](const Tensor& t) {
      return form == Form::dw ? int64_t{deep} * distance(t) : int64_t{deep};
    };
    check(cublasGemmStridedBatchedEx(
              handle_of(run), op_b, op_a, cols, rows, deep, &one, b.data, type_of(b.dtype),
              distance(b), step(b), a.data, type_of(a.dtype), distance(a), step(a), &keep, c.data,
              type_of(c.dtype), distance(c), int64_t{rows} * distance(c), static_cast<int>(shares),
              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "a product in shares");
    return true;
  }
  check(cublasGemmEx(handle_of(run), op_b, op_a, cols, rows, deep, &one, b.data, type_of(b.dtype),
                     distance(b), a.data, type_of(a.dtype), distance(a), &keep, c.data,
                     type_of(c.dtype), distance(c), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "a product");
  return true;
}

}  // namespace moe::ops::cuda
