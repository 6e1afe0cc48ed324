#include "ops/cpu/gemm/primitives.h"

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "core/error.h"
#include "ops/cpu/gemm/bf16_product.h"
#include "ops/cpu/gemm/f32_product.h"
#include "ops/cpu/gemm/onednn.h"
#include "ops/cpu/isa.h"
#include "ops/ops.h"

namespace moe::ops {
namespace {

using dnnl::memory;

// Never destroyed: streams of pool threads may outlive every static.
const dnnl::engine& engine() {
  static const dnnl::engine& e = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return e;
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc dense(int64_t rows, int64_t cols, DType dtype) {
  return {{rows, cols}, type_of(dtype), memory::dims{cols, 1}};
}

dnnl::matmul::primitive_desc describe_product(const ProductShape& s, const memory::desc& weights) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.add) {
    dnnl::post_ops post;
    post.append_sum(1.0f);
    attr.set_post_ops(post);
  }
  // oneDNN sizes its work for the number of threads seen at creation.
  const ThreadLimit limit(onednn::threads_of_one_sum(s.inner, s.cols, s.threads));
  return onednn::describe_matmul(engine(), dense(s.rows, s.cols, s.out),
                                 dense(s.rows, s.inner, s.in), weights, attr);
}

// A layout and, where it is one of oneDNN's, its description. oneDNN's favourite does not depend on
// M, so it is asked once, with the largest block of rows.
struct Weights {
  memory::desc desc;
  PackLayout layout;
};

bool read_blocks(const memory::desc& desc, DType dtype, PackLayout& layout) {
  if (!onednn::is_blocked(desc)) return false;
  const auto [strides, sizes, dimensions] = onednn::blocks_of(desc);
  layout.bytes = desc.get_size();
  layout.k_stride = strides[0];
  layout.n_stride = strides[1];
  // Blocks of k, in each columns, and for bf16 in each column a pair of k.
  const bool pairs = dtype == DType::bf16;
  if (dimensions != (pairs ? memory::dims{0, 1, 0} : memory::dims{0, 1}) ||
      (pairs && sizes[2] != 2))
    return false;
  layout.pair = pairs ? 2 : 1;
  layout.k_block = sizes[0] * layout.pair;
  layout.n_block = sizes[1];
  return true;
}

Weights choose_weights(int64_t inner, int64_t cols, DType dtype) {
  if (has_f32_products(dtype)) return {{}, f32_layout(inner, cols, dtype)};
  constexpr int64_t kLargestRows = 256;
  const ProductShape shape{kLargestRows, inner, cols, dtype, dtype, dtype, false, 1};
  Weights w;
  w.layout.inner = inner;
  w.layout.cols = cols;
  w.desc =
      describe_product(shape, memory::desc({inner, cols}, type_of(dtype), memory::format_tag::any))
          .weights_desc();
  if (read_blocks(w.desc, dtype, w.layout)) return w;
  w.desc = dense(inner, cols, dtype);
  w.layout = {inner, cols, inner, cols, 0, 0, 1, w.desc.get_size()};
  return w;
}

// Readers do not block each other; an entry never moves once made.
template <class Key, class Value>
class Cache {
 public:
  template <class Make>
  const Value& get(const Key& key, Make&& make) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = entries_.find(key); found != entries_.end()) return *found->second;
    }
    const std::unique_lock lock(mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) return *found->second;
    auto made = make();  // may throw: nothing stands there until it is made
    return *entries_.emplace(key, std::move(made)).first->second;
  }

 private:
  std::shared_mutex mutex_;
  std::map<Key, std::unique_ptr<const Value>> entries_;
};

const Weights& find_weights(int64_t inner, int64_t cols, DType dtype) {
  using Key = std::tuple<int64_t, int64_t, DType>;
  static auto& cache = *new Cache<Key, Weights>;
  return cache.get({inner, cols, dtype}, [&] {
    return std::make_unique<const Weights>(choose_weights(inner, cols, dtype));
  });
}

[[noreturn]] void fail_product(const ProductShape& s, const char* what) {
  fail("oneDNN cannot make the product [{}, {}] x [{}, {}] of {} into {}: {}", s.rows, s.inner,
       s.inner, s.cols, name_of(s.in), name_of(s.out), what);
}

}  // namespace

Product::Product(const ProductShape& shape) : shape_(shape) {
  try {
    const Weights& weights = find_weights(shape.inner, shape.cols, shape.weights);
    if (has_f32_products(shape.weights) || shape.stretch > 0) {
      layout_ = &weights.layout;
      keeps_row_bits_ = true;
      return;
    }
    const auto pd = describe_product(shape, weights.desc);
    primitive_ = dnnl::matmul(pd);
    in_ = pd.src_desc();
    weights_ = pd.weights_desc();
    out_ = pd.dst_desc();
    scratch_ = pd.scratchpad_desc();
    scratch_bytes_ = scratch_.get_size();
    const std::string_view kernel = pd.impl_info_str();
    in_tiles_ = kernel.find("amx") != std::string_view::npos;
    keeps_row_bits_ = kernel.starts_with("brg") && !in_tiles_;
  } catch (const dnnl::error& e) {
    fail_product(shape, e.what());
  }
}

// oneDNN's descriptions of a product's operands. Making them costs some twenty allocations, so each
// thread keeps its own and points them at those of the call.
struct Product::Operands {
  memory in, weights, out, scratch;
  std::array<dnnl_exec_arg_t, 4> args;

  explicit Operands(const Product& p)
      : in(p.in_, engine(), nullptr),
        weights(p.weights_, engine(), nullptr),
        out(p.out_, engine(), nullptr),
        scratch(p.scratch_, engine(), nullptr),
        args{{{DNNL_ARG_SRC, in.get()},
              {DNNL_ARG_WEIGHTS, weights.get()},
              {DNNL_ARG_DST, out.get()},
              {DNNL_ARG_SCRATCHPAD, scratch.get()}}} {}
};

void Product::run(void* out, const void* in, const void* w, void* scratch) const {
  if (shape_.stretch > 0) return multiply_bf16(shape_, *layout_, out, in, w);
  if (layout_ != nullptr)
    return multiply_f32(shape_, *layout_, static_cast<float*>(out), static_cast<const float*>(in),
                        w);
  thread_local const dnnl::stream stream(engine());
  thread_local std::unordered_map<const Product*, Operands> kept;
  const Operands& operands = kept.try_emplace(this, *this).first->second;
  // oneDNN takes its inputs by pointers to non-const; it only reads them.
  operands.in.set_data_handle(const_cast<void*>(in));
  operands.weights.set_data_handle(const_cast<void*>(w));
  operands.out.set_data_handle(out);
  operands.scratch.set_data_handle(scratch);
  if (dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(operands.args.size()),
                             operands.args.data()) != dnnl_success)
    fail("oneDNN failed in a product");
}

const Product& find_product(ProductShape shape) {
  choose_isa();
  static auto& cache = *new Cache<ProductShape, Product>;
  return cache.get(shape, [&] { return std::make_unique<const Product>(shape); });
}

const PackLayout& weights_layout(int64_t inner, int64_t cols, DType dtype) {
  choose_isa();
  try {
    return find_weights(inner, cols, dtype).layout;
  } catch (const dnnl::error& e) {
    fail("oneDNN cannot choose a layout for weights [{}, {}] in {}: {}", inner, cols,
         name_of(dtype), e.what());
  }
}

DType stored_dtype(DType value, DType compute) {
  const bool kept = (value == DType::bf16 || value == DType::f16) && has_f32_products(value);
  return compute == DType::f32 && kept ? value : compute;
}

bool products_keep_row_bits(DType dtype) {
  const DType in = dtype == DType::bf16 && has_bf16_products() ? DType::bf16 : DType::f32;
  return find_product({16, 64, 64, in, in, DType::f32, false, 1}).keeps_row_bits();
}

}  // namespace moe::ops
