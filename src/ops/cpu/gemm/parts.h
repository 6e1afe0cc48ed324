// The parts of one call of a product, between matmul.cpp, which checks and packs, and the ways of
// multiplying them.
#pragma once

#include <span>
#include <vector>

#include "ops/cpu/gemm/products.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/cpu/gemm/weights.h"

namespace moe::ops {

// Rows [begin, end), at least one, meet this expert.
struct Group {
  int64_t expert, begin, end;
  int64_t units() const { return round_up(end - begin, kUnit) / kUnit; }
};

// One matrix of a call. Forward it reads the rows all factors share and has an output of its own;
// backward the other way round.
struct Part {
  Tensor out;       // [R, N]
  GatheredRows in;  // [R, K]
  CallWeight w;
  bool add;
  DType compute;

  bool direct_in() const { return !in.listed() && in.x.dense() && in.x.dtype == compute; }
  // Else the product goes to a dense copy in scratch, because `out` is a slice of columns or of
  // another dtype.
  bool direct_out() const {
    return out.dense() && (out.dtype == DType::f32 || out.dtype == compute);
  }
  DType product_dtype() const { return direct_out() ? out.dtype : DType::f32; }
  // These rows of `in` as the product wants them: where they lie, or gathered and converted in
  // scratch.
  const void* rows_of(int64_t first, int64_t rows, Arena& scratch) const;
  ProductShape shape(int64_t rows, int threads) const {
    return {rows,    in.cols(),       out.cols(),          compute,
            w.dtype, product_dtype(), add && direct_out(), threads};
  }
};

// The rows of a group at one matrix. Parts of one call may have groups of their own.
struct Meeting {
  const Part* part;
  const Group* group;
};

// Of all parts' weights, as tiles take them [parts]; empty where one has no such layout.
std::vector<const PackLayout*> tile_layouts(const std::vector<Part>& parts);

bool same_rows(const GatheredRows& a, const GatheredRows& b);

// Of one thread: rows as tiles, made when its stretches meet them, in its scratch; those before are
// gone then, and what was taken of the scratch behind them has to be.
class TilesOfThread {
 public:
  explicit TilesOfThread(Arena& scratch) : scratch_(scratch), mark_(scratch.mark()) {}

  const char* of(const Part& p, const Group& g);

 private:
  Arena& scratch_;
  Arena::Mark mark_;
  TilesInUse in_use_;
  const Group* group_ = nullptr;  // null: there are none
  const GatheredRows* rows_ = nullptr;
  const char* tiles_ = nullptr;
};

// What threads share out of a meeting: units of columns, each of the same cost.
struct Stretch {
  const Part* part;
  const Group* group;
  int64_t units, cost;
  int64_t before;  // cost of all earlier stretches

  int64_t end() const { return before + cost * units; }
  // The units that begin in a share of all costs.
  Span in(Span share) const {
    const auto unit = [&](int64_t at) {
      return at <= before ? 0 : std::min((at - before + cost - 1) / cost, units);
    };
    return {unit(share.begin), unit(share.end)};
  }
};

// The next three turn experts that are not packed a few columns at a time, in the cache of the
// thread that multiplies them: memory is read once and not written.

// y = x w^T where all parts' weights are panels of quantised values (quant_product.h).
void multiply_quantised(Run& run, std::span<const Meeting> meetings);
// Where every expert has a few rows only, as when a text is written token by token, weights are all
// that is read: each thread takes an even share of all the matrices' columns, so that the weights
// of a token's experts stream through once, without a pause between experts. False where the parts
// have no such products: nothing is multiplied.
bool multiply_rows(Run& run, std::span<const Meeting> meetings);
// Many rows, in tiles, where no expert is packed; false as above.
bool multiply_passing(Run& run, const std::vector<Part>& parts, std::span<const Group> groups,
                      int threads);

}  // namespace moe::ops
