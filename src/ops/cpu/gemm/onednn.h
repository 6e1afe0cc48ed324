// What differs between oneDNN 2 (Debian 12) and oneDNN 3 (Debian 13), which took its operation
// descriptions and the insides of its layouts away. No other file asks for the version.
#pragma once

#include <algorithm>
#include <cstdint>
#include <dnnl.hpp>

#if DNNL_VERSION_MAJOR < 2 || DNNL_VERSION_MAJOR > 3
#error "moe.cpp knows oneDNN 2.6 to 3; the layouts of another major version are unproven here"
#endif

namespace moe::ops::onednn {

// The blocks of a layout: for each dimension the distance between neighbouring blocks, then the
// inner blocks from the outermost, each a size and the dimension that it cuts. Distances are in
// elements.
struct Blocks {
  dnnl::memory::dims strides, sizes, dimensions;
};

#if DNNL_VERSION_MAJOR == 2

// out = in * weights, with what attr adds.
inline dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine,
                                                    const dnnl::memory::desc& out,
                                                    const dnnl::memory::desc& in,
                                                    const dnnl::memory::desc& weights,
                                                    const dnnl::primitive_attr& attr) {
  return {dnnl::matmul::desc(in, weights, out), attr, engine};
}

// How many threads may work on a product and leave its bits.
inline int threads_of_one_sum(int64_t, int64_t, int threads) { return threads; }

inline bool is_blocked(const dnnl::memory::desc& desc) {
  return desc.data.format_kind == dnnl_blocked;
}

// Of a layout that is_blocked().
inline Blocks blocks_of(const dnnl::memory::desc& desc) {
  const auto& b = desc.data.format_desc.blocking;
  return {{b.strides, b.strides + desc.data.ndims},
          {b.inner_blks, b.inner_blks + b.inner_nblks},
          {b.inner_idxs, b.inner_idxs + b.inner_nblks}};
}

#else

// A single row is plain and transposed at once. oneDNN 3 takes it for transposed and cuts its sum
// into other stretches than those of more rows; left to choose the layout, it chooses the plain
// one.
inline dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine,
                                                    const dnnl::memory::desc& out,
                                                    const dnnl::memory::desc& in,
                                                    const dnnl::memory::desc& weights,
                                                    const dnnl::primitive_attr& attr) {
  using dnnl::memory;
  if (in.get_dims()[0] == 1) {
    const dnnl::matmul::primitive_desc pd(
        engine, memory::desc(in.get_dims(), in.get_data_type(), memory::format_tag::any), weights,
        out, attr);
    if (pd.src_desc() == in) return pd;
  }
  return {engine, in, weights, out, attr};
}

// oneDNN 3 cuts a sum of more than some 18,000 numbers among its threads where it has fewer blocks
// of 64 columns than threads; seen in 3.7.2 with AVX-512 in f32.
inline int threads_of_one_sum(int64_t inner, int64_t cols, int threads) {
  constexpr int64_t kLongSum = 16384, kBlock = 64;
  return inner > kLongSum
             ? static_cast<int>(std::min<int64_t>(threads, (cols + kBlock - 1) / kBlock))
             : threads;
}

inline bool is_blocked(const dnnl::memory::desc& desc) {
  return desc.get_format_kind() == dnnl::memory::format_kind::blocked;
}

inline Blocks blocks_of(const dnnl::memory::desc& desc) {
  return {desc.get_strides(), desc.get_inner_blks(), desc.get_inner_idxs()};
}

#endif

}  // namespace moe::ops::onednn
