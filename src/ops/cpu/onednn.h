// What differs between oneDNN 2 (Debian 12) and oneDNN 3 (Debian 13), which took its operation descriptions and the insides of its layouts away.
// No other file asks for the version.
#pragma once

#include <dnnl.hpp>

#if DNNL_VERSION_MAJOR < 2 || DNNL_VERSION_MAJOR > 3
#error "moe.cpp knows oneDNN 2.6 to 3; the layouts of another major version are unproven here"
#endif

namespace moe::ops::onednn {

// The blocks of a layout: for each dimension the distance between neighbouring blocks, then the inner blocks from the outermost, each a size and the dimension
// that it cuts. Distances are in elements.
struct Blocks {
  dnnl::memory::dims strides, sizes, dimensions;
};

#if DNNL_VERSION_MAJOR == 2

// out = in * weights, with what attr adds.
inline dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine, const dnnl::memory::desc& out, const dnnl::memory::desc& in,
                                                    const dnnl::memory::desc& weights, const dnnl::primitive_attr& attr) {
  return {dnnl::matmul::desc(in, weights, out), attr, engine};
}

inline bool is_blocked(const dnnl::memory::desc& desc) { return desc.data.format_kind == dnnl_blocked; }

// Of a layout that is_blocked().
inline Blocks blocks_of(const dnnl::memory::desc& desc) {
  const auto& b = desc.data.format_desc.blocking;
  return {{b.strides, b.strides + desc.data.ndims}, {b.inner_blks, b.inner_blks + b.inner_nblks}, {b.inner_idxs, b.inner_idxs + b.inner_nblks}};
}

#else

// A single row is plain and transposed at once. oneDNN 3 takes it for transposed and cuts its sum into other stretches than those of more rows; left to choose
// the layout, it chooses the plain one.
inline dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine, const dnnl::memory::desc& out, const dnnl::memory::desc& in,
                                                    const dnnl::memory::desc& weights, const dnnl::primitive_attr& attr) {
  using dnnl::memory;
  if (in.get_dims()[0] == 1) {
    const dnnl::matmul::primitive_desc pd(engine, memory::desc(in.get_dims(), in.get_data_type(), memory::format_tag::any), weights, out, attr);
    if (pd.src_desc() == in) return pd;
  }
  return {engine, in, weights, out, attr};
}

inline bool is_blocked(const dnnl::memory::desc& desc) { return desc.get_format_kind() == dnnl::memory::format_kind::blocked; }

inline Blocks blocks_of(const dnnl::memory::desc& desc) { return {desc.get_strides(), desc.get_inner_blks(), desc.get_inner_idxs()}; }

#endif

}  // namespace moe::ops::onednn
