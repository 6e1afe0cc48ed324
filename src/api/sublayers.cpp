// Attention and norms over arrays that the caller keeps, for programs that have the rest of a model
// elsewhere.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "api/layer.h"
#include "core/threads.h"
#include "ops/ops.h"

namespace moe::api {
namespace {

// body(run, arrays), for a function that keeps nothing between its calls. threads 0: all cores.
template <class Body>
moe_status called_alone(const moe_array* arrays, size_t count, int threads, const char* function,
                        Body&& body) {
  return guarded([&] {
    Arrays given_arrays(arrays, count, function);
    BorrowedRun run(thread_count(threads), DType::f32);
    body(*run, given_arrays);
  });
}

int64_t head_width(const Tensor& t, const char* name, int heads) {
  if (t.cols() == 0 || t.cols() % heads != 0)
    fail_usage("\"{}\" has {} columns, which are not those of {} heads", name, t.cols(), heads);
  return t.cols() / heads;
}

void need_dtype(const Tensor& t, const char* name, const Tensor& q) {
  if (t.dtype != q.dtype)
    fail_usage("\"{}\" is {} and \"q\" {}; attention needs one dtype", name, name_of(t.dtype),
               name_of(q.dtype));
}

// Of the sequences that these rows belong to; absent: empty.
std::vector<int64_t> bounds_of(Arrays& arrays, const char* name, int64_t rows) {
  std::vector<int64_t> bounds = arrays.wholes(name, Arrays::kAny);
  check_bounds(name, bounds, rows);
  return bounds;
}

// What forward and backward are both given. Each sequence's queries are of the last of its keys.
struct AttentionCall {
  Tensor q, k, v, lse;
  std::vector<int64_t> bounds, key_bounds;  // [S + 1]
  std::vector<int32_t> positions;           // [N]
  moe_attention_options options;

  AttentionCall(Arrays& arrays, const moe_attention_options& asked, bool backward)
      : options(asked) {
    check_options();
    q = arrays.take("q", kFloats, {Arrays::kAny, Arrays::kAny});
    k = arrays.take("k", kFloats, {Arrays::kAny, Arrays::kAny});
    v = arrays.take("v", kFloats, {k.rows(), Arrays::kAny});
    need_dtype(k, "k", q);
    need_dtype(v, "v", q);
    const int64_t width = head_width(q, "q", options.heads);
    if (head_width(k, "k", options.kv_heads) != width)
      fail_usage("heads of \"q\" have {} numbers and those of \"k\" {}; they need as many", width,
                 head_width(k, "k", options.kv_heads));
    lse = arrays.find("lse", kF32, {q.rows(), options.heads});
    bounds = bounds_of(arrays, "bounds", q.rows());
    if (bounds.empty()) bounds = {0, q.rows()};
    if (!backward) key_bounds = bounds_of(arrays, "key_bounds", k.rows());
    if (key_bounds.empty() && k.rows() == q.rows()) key_bounds = bounds;
    if (key_bounds.size() != bounds.size())
      fail_usage(
          "\"q\" has {} rows in {} sequences and \"k\" {} in {}; {}", q.rows(), bounds.size() - 1,
          k.rows(), std::max<size_t>(key_bounds.size(), 1) - 1,
          backward ? "a backward needs them alike" : "give \"key_bounds\" of as many sequences");
    place_queries();
  }

  int64_t out_width() const { return head_width(v, "v", options.kv_heads) * options.heads; }
  ops::KvView kv() const {
    return {.k = k,
            .v = v,
            .bounds = bounds,
            .first_row = std::span(key_bounds).first(key_bounds.size() - 1)};
  }

 private:
  void check_options() const {
    if (options.heads <= 0 || options.kv_heads <= 0 || options.heads % options.kv_heads != 0)
      fail_usage("heads is {} and kv_heads {}; the latter must divide the former", options.heads,
                 options.kv_heads);
    if (!(options.scale > 0) || options.window < 0 || !(options.cap >= 0))
      fail_usage("scale is {}, window {} and cap {}; scale must be above 0, the others not below",
                 options.scale, options.window, options.cap);
  }
  void place_queries() {
    positions.resize(static_cast<size_t>(q.rows()));
    for (size_t s = 0; s + 1 < bounds.size(); ++s) {
      const int64_t queries = bounds[s + 1] - bounds[s], keys = key_bounds[s + 1] - key_bounds[s];
      if (keys < queries)
        fail_usage("sequence {} has {} queries and {} keys; each query needs its own key", s,
                   queries, keys);
      std::iota(positions.begin() + bounds[s], positions.begin() + bounds[s + 1],
                static_cast<int32_t>(keys - queries));
    }
  }
};

void attention(Run& run, Arrays& arrays, const moe_attention_options& options) {
  const AttentionCall call(arrays, options, false);
  const Tensor o = arrays.take("o", kFloats, {call.q.rows(), call.out_width()});
  need_dtype(o, "o", call.q);
  arrays.done();
  if (o.rows() == 0) return;
  ops::attention_forward(run, o, call.lse, call.q, call.kv(), call.positions, options.heads,
                         options.kv_heads, options.scale, options.window, options.cap);
}

void attention_backward(Run& run, Arrays& arrays, const moe_attention_options& options) {
  const AttentionCall call(arrays, options, true);
  const auto like = [&](const char* name, const Tensor& t) {
    const Tensor found = arrays.take(name, kFloats, {t.rows(), t.cols()});
    need_dtype(found, name, call.q);
    return found;
  };
  const Tensor o = arrays.take("o", kFloats, {call.q.rows(), call.out_width()});
  need_dtype(o, "o", call.q);
  const Tensor dout = like("do", o), dq = like("dq", call.q), dk = like("dk", call.k),
               dv = like("dv", call.v);
  if (call.lse.empty()) fail_usage("\"lse\" is missing; the forward is given memory for it");
  arrays.done();
  if (o.rows() == 0) return;
  ops::attention_backward(run, dq, dk, dv, dout, call.q, call.kv(), o, call.lse, call.positions,
                          options.heads, options.kv_heads, options.scale, options.window,
                          options.cap);
}

// What forward and backward are both given.
struct NormCall {
  Tensor x, rstd;
  Param weight;

  explicit NormCall(Arrays& arrays)
      : x(arrays.take("x", kFloats, {Arrays::kAny, Arrays::kAny})),
        rstd(arrays.take("rstd", kF32, {x.rows()})) {
    weight.name = "weight";
    if (const Tensor w = arrays.find("weight", kF32, {x.cols()}); !w.empty()) weight.bind(w);
  }
};

void rms_norm(Run& run, Arrays& arrays, float eps, float offset) {
  const NormCall call(arrays);
  const Tensor y = arrays.take("y", kFloats, {call.x.rows(), call.x.cols()});
  arrays.done();
  if (y.rows() > 0) ops::rms_norm_forward(run, y, call.rstd, call.x, call.weight, eps, offset);
}

void rms_norm_backward(Run& run, Arrays& arrays, float offset) {
  NormCall call(arrays);
  const Tensor dy = arrays.take("dy", kFloats, {call.x.rows(), call.x.cols()}),
               dx = arrays.take("dx", kFloats, {call.x.rows(), call.x.cols()});
  if (const Tensor dweight = arrays.find("dweight", kF32, {call.x.cols()}); !dweight.empty()) {
    std::memset(dweight.data, 0, dweight.bytes());
    call.weight.bind_grad(dweight, {});
  }
  arrays.done();
  if (dx.rows() > 0) ops::rms_norm_backward(run, dx, call.weight, dy, call.x, call.rstd, offset);
}

}  // namespace
}  // namespace moe::api

using namespace moe::api;

extern "C" {

moe_status moe_attention(const moe_array* arrays, size_t count,
                         const moe_attention_options* options, int threads) {
  return called_alone(arrays, count, threads, "moe_attention", [&](auto& run, auto& given_arrays) {
    attention(run, given_arrays, need(options, "moe_attention: options"));
  });
}

moe_status moe_attention_backward(const moe_array* arrays, size_t count,
                                  const moe_attention_options* options, int threads) {
  return called_alone(
      arrays, count, threads, "moe_attention_backward", [&](auto& run, auto& given_arrays) {
        attention_backward(run, given_arrays, need(options, "moe_attention_backward: options"));
      });
}

moe_status moe_rms_norm(const moe_array* arrays, size_t count, float eps, float offset,
                        int threads) {
  return called_alone(arrays, count, threads, "moe_rms_norm", [&](auto& run, auto& given_arrays) {
    rms_norm(run, given_arrays, eps, offset);
  });
}

moe_status moe_rms_norm_backward(const moe_array* arrays, size_t count, float offset, int threads) {
  return called_alone(
      arrays, count, threads, "moe_rms_norm_backward",
      [&](auto& run, auto& given_arrays) { rms_norm_backward(run, given_arrays, offset); });
}

}  // extern "C"
