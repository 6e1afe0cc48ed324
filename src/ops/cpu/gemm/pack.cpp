// Packing for products. Transposition works on 32-bit words: an f32, or two neighbouring bf16 of
// the inner dimension, which the layout keeps together.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm/pack.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/cpu/gemm/pack.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void Transpose4(uint32_t* HWY_RESTRICT out, int64_t out_stride,
                           const uint32_t* HWY_RESTRICT in, int64_t in_stride) {
  const hn::FixedTag<uint32_t, 4> d;
  const auto r0 = hn::LoadU(d, in), r1 = hn::LoadU(d, in + in_stride),
             r2 = hn::LoadU(d, in + 2 * in_stride), r3 = hn::LoadU(d, in + 3 * in_stride);
  const auto low02 = hn::InterleaveLower(d, r0, r2), low13 = hn::InterleaveLower(d, r1, r3);
  const auto high02 = hn::InterleaveUpper(d, r0, r2), high13 = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::InterleaveLower(d, low02, low13), d, out);
  hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, out + out_stride);
  hn::StoreU(hn::InterleaveLower(d, high02, high13), d, out + 2 * out_stride);
  hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, out + 3 * out_stride);
}
#endif

// out(j, i) = in(i, j), rows and cols of `in`. To stream, `out` and its stride are whole cache
// lines.
template <bool kStream>
HWY_INLINE void TransposeWords(uint32_t* HWY_RESTRICT out, int64_t out_stride,
                               const uint32_t* HWY_RESTRICT in, int64_t in_stride, int64_t rows,
                               int64_t cols) {
  const auto at = [&](int64_t r, int64_t c) { return in + r * in_stride + c; };
  const auto word = [&](int64_t r, int64_t c) {  // a file may put pairs of bf16 at any even address
    uint32_t w;
    std::memcpy(&w, at(r, c), sizeof w);
    return w;
  };
  int64_t r = 0;
#if HWY_TARGET <= HWY_AVX3
  const int64_t tiled_cols = cols / 16 * 16;
  for (; r + 16 <= rows; r += 16) {
    for (int64_t c = 0; c < tiled_cols; c += 16)
      Transpose16<kStream>(out + c * out_stride + r, out_stride, at(r, c), in_stride);
    for (int64_t c = tiled_cols; c < cols; ++c)
      for (int64_t i = r; i < r + 16; ++i) out[c * out_stride + i] = word(i, c);
  }
#endif
#if HWY_TARGET != HWY_SCALAR
  const int64_t whole_cols = cols / 4 * 4;
  for (; r + 4 <= rows; r += 4) {
    for (int64_t c = 0; c < whole_cols; c += 4)
      Transpose4(out + c * out_stride + r, out_stride, at(r, c), in_stride);
    for (int64_t c = whole_cols; c < cols; ++c)
      for (int64_t i = r; i < r + 4; ++i) out[c * out_stride + i] = word(i, c);
  }
#endif
  for (; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) out[c * out_stride + r] = word(r, c);
}

template <bool kStream = false, class To, class From>
HWY_INLINE void ConvertRow(To* HWY_RESTRICT out, const From* HWY_RESTRICT in, int64_t n) {
  const DF32 d;
  ForColumns(d, n, [&](int64_t c, auto part) HWY_ATTR {
    if constexpr (kStream && std::is_same_v<decltype(part), Whole>)
      hn::Stream(Load(d, in + c, part), d, out + c);
    else Store(Load(d, in + c, part), d, out + c, part);
  });
}

HWY_INLINE float ToF32(float x) { return x; }
HWY_INLINE float ToF32(Half x) { return f16_to_f32(x.bits); }

// Words of bf16 pairs, `even` below `odd`, which may be null for zeros.
template <bool kStream>
HWY_INLINE void PairRows(uint32_t* HWY_RESTRICT out, const bf16* even, const bf16* odd, int64_t n) {
  const hn::ScalableTag<uint32_t> d;
  const hn::Rebind<uint16_t, decltype(d)> half;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; odd != nullptr && c + lanes <= n; c += lanes) {
    const auto low = hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const uint16_t*>(even + c)));
    const auto high = hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const uint16_t*>(odd + c)));
    Put<kStream>(hn::Or(low, hn::ShiftLeft<16>(high)), d, out + c);
  }
  for (; c < n; ++c) out[c] = even[c].bits | (odd != nullptr ? uint32_t{odd[c].bits} << 16 : 0);
}
template <bool kStream, class T>
HWY_INLINE void PairRows(uint32_t* HWY_RESTRICT out, const T* even, const T* odd, int64_t n) {
  const DF32 df;
  const hn::RebindToUnsigned<DF32> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; odd != nullptr && c + lanes <= n; c += lanes) {
    const auto low = RoundBf16(df, LoadF32(df, even + c));
    const auto high = RoundBf16(df, LoadF32(df, odd + c));
    Put<kStream>(hn::Or(low, hn::ShiftLeft<16>(high)), d, out + c);
  }
  const auto narrow = [](T x) { return uint32_t{to_bf16(ToF32(x)).bits}; };
  for (; c < n; ++c) out[c] = narrow(even[c]) | (odd != nullptr ? narrow(odd[c]) << 16 : 0);
}

template <class T>
HWY_INLINE const T* At(const Source& s, int64_t row, int64_t col) {
  return static_cast<const T*>(s.data) + (s.row != nullptr ? s.row[row] : row) * s.stride + col;
}

// Fetches what the next call will read while this one computes, a few lines at a time: masters
// larger than the cache then arrive at the speed of memory.
class Ahead {
 public:
  explicit Ahead(const PackHints& hints)
      : at_(static_cast<const char*>(hints.next)), end_(at_ + hints.next_bytes) {}
  HWY_INLINE void fetch(int64_t bytes) {
    for (const char* stop = std::min(at_ + bytes, end_); at_ < stop; at_ += 64)
      __builtin_prefetch(at_, 0, 2);
  }

 private:
  const char *at_, *end_;
};

// [rows, take] numbers from row `first`, column k on as words of the layout, kWords apart: f32, or
// pairs of bf16.
template <class T>
HWY_INLINE void FillWords(uint32_t* words, int64_t words_stride, bool halves, const Source& source,
                          int64_t first, int64_t k, int64_t rows, int64_t take, Ahead& ahead) {
  for (int64_t i = 0; i < rows; ++i) {
    ahead.fetch(take * static_cast<int64_t>(sizeof(T)));
    uint32_t* to = words + i * words_stride;
    const T* from = At<T>(source, first + i, k);
    if (!halves) {
      ConvertRow(reinterpret_cast<float*>(to), from, take);
      continue;
    }
    if (take % 2 != 0) to[take / 2] = 0;
    if constexpr (std::is_same_v<T, bf16>)
      std::memcpy(to, from, static_cast<size_t>(take) * sizeof(bf16));
    else ConvertRow(reinterpret_cast<bf16*>(to), from, take);
  }
}

// A column of blocks that is being packed.
template <class T>
struct Panel {
  const PackLayout& layout;
  const Source& source;
  char* data;
  bool halves;
  int64_t first, rows;  // of the source

  int64_t pair() const { return halves ? 2 : 1; }
  int64_t depth(int64_t k) const { return std::min(layout.k_block, layout.inner - k); }
  uint32_t* block(int64_t k) const {
    return reinterpret_cast<uint32_t*>(data + k / layout.k_block * layout.k_stride *
                                                  (halves ? sizeof(bf16) : sizeof(float)));
  }
};

// Words that lie in the source as they do in the layout, 16 rows from end to end at a time: so many
// streams of lines the processor foresees by itself. (Of 64 rows it foresees fewer than a core of
// an Intel Xeon can wait for, and asking for them by hand gets 7 GB/s in place of 9.)
template <bool kStream, class T>
HWY_INLINE void TurnWords(const Panel<T>& p) {
  const PackLayout& l = p.layout;
  constexpr int64_t kRows = 16;
  for (int64_t r = 0; r < p.rows; r += kRows)
    for (int64_t k = 0; k < l.inner; k += l.k_block)
      TransposeWords<kStream>(p.block(k) + r, l.n_block,
                              reinterpret_cast<const uint32_t*>(At<T>(p.source, p.first + r, k)),
                              p.source.stride / p.pair(), std::min(kRows, p.rows - r),
                              p.depth(k) / p.pair());
}

// What does not: all of each block, or the number at its end that has no pair, by way of words in
// the cache.
template <bool kStream, class T>
HWY_INLINE void ConvertWords(const Panel<T>& p, bool tails_only, const PackHints& hints) {
  const PackLayout& l = p.layout;
  constexpr int64_t kRows = 64, kWords = 16;
  const int64_t pair = p.pair();
  alignas(64) uint32_t words[kRows * kWords];
  Ahead ahead(hints);
  for (int64_t k = 0; k < l.inner; k += l.k_block) {
    const int64_t depth = p.depth(k);
    for (int64_t r = 0; r < p.rows; r += kRows) {
      const int64_t rows = std::min(kRows, p.rows - r);
      for (int64_t c = tails_only ? depth / pair * pair : 0; c < depth; c += kWords * pair) {
        const int64_t take = std::min(kWords * pair, depth - c);
        FillWords<T>(words, kWords, p.halves, p.source, p.first + r, k + c, rows, take, ahead);
        TransposeWords<kStream>(p.block(k) + c / pair * l.n_block + r, l.n_block, words, kWords,
                                rows, (take + pair - 1) / pair);
      }
    }
  }
}

template <bool kStream, class T>
void PackTransposedBlock(void* packed, const PackLayout& l, DType dtype, const Source& source,
                         int64_t block, const PackHints& hints) {
  const int64_t size = static_cast<int64_t>(size_of(dtype)), first = block * l.n_block;
  const Panel<T> p{l,
                   source,
                   static_cast<char*>(packed) + block * l.n_stride * size,
                   dtype == DType::bf16,
                   first,
                   std::min(l.n_block, l.cols - first)};
  for (int64_t k = 0; k < l.inner; k += l.k_block)
    if (p.rows < l.n_block || p.depth(k) < l.k_block)
      std::memset(p.block(k), 0, static_cast<size_t>(l.k_block * l.n_block * size));
  // (A row of bf16 pairs begins at a word if the rows' distance is even.)
  const bool are_words =
      p.halves ? std::is_same_v<T, bf16> && source.stride % 2 == 0 : std::is_same_v<T, float>;
  if (are_words) TurnWords<kStream, T>(p);
  if (!are_words || l.inner % p.pair() != 0) ConvertWords<kStream, T>(p, are_words, hints);
}

// Halves that stay halves, each k by itself: turned as words of two k, which are then parted.
void PackHalves(void* packed, const PackLayout& l, const Source& source, int64_t block,
                const PackHints& hints) {
  constexpr int64_t kRows = 64, kWords = 16;
  const int64_t first = block * l.n_block, n = std::min(l.n_block, l.cols - first);
  const hn::ScalableTag<uint32_t> d;
  const hn::Rebind<uint16_t, decltype(d)> half;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  alignas(64) uint32_t words[kRows * kWords], turned[kWords * kRows];
  Ahead ahead(hints);
  for (int64_t k = 0; k < l.inner; k += 2 * kWords) {
    const int64_t take = std::min(2 * kWords, l.inner - k);
    for (int64_t r = 0; r < l.n_block; r += kRows) {
      const int64_t room = std::min(kRows, l.n_block - r);
      for (int64_t i = 0; i < room; ++i) {
        ahead.fetch(take * 2);
        uint32_t* to = words + i * kWords;
        std::memset(to, 0, kWords * 4);
        if (r + i < n)
          std::memcpy(to, At<Half>(source, first + r + i, k), static_cast<size_t>(take) * 2);
      }
      TransposeWords<false>(turned, room, words, kWords, room, kWords);
      // Rows that pad the last block of k are written as zeros too.
      for (int64_t i = 0; i < std::min(2 * kWords, l.k_block * row_blocks(l) - k); i += 2) {
        const int64_t at = (k + i) / l.k_block * l.k_stride + block * l.n_stride +
                           (k + i) % l.k_block * l.n_block + r;
        uint16_t* out = static_cast<uint16_t*>(packed) + at;
        for (int64_t c = 0; c < room; c += lanes) {
          const auto pair = hn::LoadU(d, turned + i / 2 * room + c);
          hn::StoreU(hn::TruncateTo(half, pair), half, out + c);
          hn::StoreU(hn::TruncateTo(half, hn::ShiftRight<16>(pair)), half, out + l.n_block + c);
        }
      }
    }
  }
}

void PackTransposed(void* packed, const PackLayout& layout, DType dtype, const Source& source,
                    int64_t block, const PackHints& hints) {
  if (dtype == DType::f16) return PackHalves(packed, layout, source, block, hints);
  WithWeight(source.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    if (hints.stream) PackTransposedBlock<true, T>(packed, layout, dtype, source, block, hints);
    else PackTransposedBlock<false, T>(packed, layout, dtype, source, block, hints);
  });
}

template <bool kStream, class T>
HWY_INLINE void PackStraightRows(void* packed, const PackLayout& l, DType dtype,
                                 const Source& source, int64_t source_rows, int64_t block,
                                 const PackHints& hints) {
  const int64_t k0 = block * l.k_block, depth = std::clamp<int64_t>(source_rows - k0, 0, l.k_block),
                size = static_cast<int64_t>(size_of(dtype));
  char* const blocks = static_cast<char*>(packed) + block * l.k_stride * size;
  if (l.cols % l.n_block != 0)
    std::memset(blocks + l.cols / l.n_block * l.n_stride * size, 0,
                static_cast<size_t>(l.k_block * l.n_block * size));
  Ahead ahead(hints);
  // Whole rows one after the other, as memory is read fastest, not block by block.
  for (int64_t k = 0; k < l.k_block; k += l.pair)
    for (int64_t first = 0; first < l.cols; first += l.n_block) {
      const int64_t n = std::min(l.n_block, l.cols - first);
      char* row = blocks + (first / l.n_block * l.n_stride + k * l.n_block) * size;
      ahead.fetch(l.pair * n * static_cast<int64_t>(sizeof(T)));
      if (k >= depth) std::memset(row, 0, static_cast<size_t>(l.n_block * l.pair * size));
      else if (dtype == DType::f32)
        ConvertRow<kStream>(reinterpret_cast<float*>(row), At<T>(source, k0 + k, first), n);
      else if (dtype == DType::f16)
        std::memcpy(row, At<T>(source, k0 + k, first), static_cast<size_t>(n) * sizeof(Half));
      else
        PairRows<kStream>(reinterpret_cast<uint32_t*>(row), At<T>(source, k0 + k, first),
                          k + 1 < depth ? At<T>(source, k0 + k + 1, first) : nullptr, n);
    }
}

void PackStraight(void* packed, const PackLayout& l, DType dtype, const Source& source,
                  int64_t source_rows, int64_t block, const PackHints& hints) {
  WithWeight(source.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    if (hints.stream)
      PackStraightRows<true, T>(packed, l, dtype, source, source_rows, block, hints);
    else PackStraightRows<false, T>(packed, l, dtype, source, source_rows, block, hints);
  });
}

// Asks for a row that is read soon: rows apart from each other the processor does not foresee.
HWY_INLINE void FetchRow(const Source& s, int64_t row, int64_t cols) {
  const int64_t size = static_cast<int64_t>(size_of(s.dtype));
  const char* at =
      static_cast<const char*>(s.data) + (s.row != nullptr ? s.row[row] : row) * s.stride * size;
  for (int64_t byte = 0; byte < cols * size; byte += 64) __builtin_prefetch(at + byte, 0, 2);
}

void Transpose(void* out, DType dtype, const Source& source, int64_t rows, int64_t cols,
               int64_t padded_rows, void* scratch) {
  constexpr int64_t kWords = 16;
  auto* words = static_cast<uint32_t*>(scratch);
  const int64_t step = dtype == DType::bf16 ? 2 : 1, stride = padded_rows / step;
  auto* target = static_cast<uint32_t*>(out);
  for (int64_t r = 0; r < rows; r += kWords * step) {
    const int64_t take = std::min(kWords * step, rows - r);
    for (int64_t i = r + take; i < std::min(r + 2 * take, rows); ++i) FetchRow(source, i, cols);
    if (dtype == DType::f32 && source.dtype == DType::f32 && source.row == nullptr) {
      TransposeWords<false>(target + r, stride, At<uint32_t>(source, r, 0), source.stride, take,
                            cols);
      continue;
    }
    for (int64_t i = 0; i < take; i += step) {
      uint32_t* row = words + i / step * cols;
      WithFloat(source.dtype, [&](auto element) HWY_ATTR {
        using T = decltype(element);
        if (dtype == DType::f32)
          ConvertRow(reinterpret_cast<float*>(row), At<T>(source, r + i, 0), cols);
        else
          PairRows<false>(row, At<T>(source, r + i, 0),
                          r + i + 1 < rows ? At<T>(source, r + i + 1, 0) : nullptr, cols);
      });
    }
    TransposeWords<false>(target + r / step, stride, words, cols, (take + step - 1) / step, cols);
  }
  const int64_t done = (rows + step - 1) / step;
  if (done < stride)
    for (int64_t c = 0; c < cols; ++c)
      std::fill(target + c * stride + done, target + (c + 1) * stride, 0u);
}

void ConvertMatrix(void* out, DType out_dtype, int64_t out_stride, const Source& source,
                   int64_t rows, int64_t cols, bool add) {
  const DF32 d;
  WithFloat(out_dtype, [&](auto to) HWY_ATTR {
    WithFloat(source.dtype, [&](auto from) HWY_ATTR {
      for (int64_t r = 0; r < rows; ++r) {
        auto* row = static_cast<decltype(to)*>(out) + r * out_stride;
        const auto* in = At<decltype(from)>(source, r, 0);
        if (std::is_same_v<decltype(to), decltype(from)> && !add)
          std::memcpy(row, in, static_cast<size_t>(cols) * sizeof(to));
        else if (add)
          ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
            Store(hn::Add(Load(d, row + c, part), Load(d, in + c, part)), d, row + c, part);
          });
        else ConvertRow(row, in, cols);
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {

HWY_EXPORT(PackTransposed);
HWY_EXPORT(PackStraight);
HWY_EXPORT(Transpose);
HWY_EXPORT(ConvertMatrix);

int64_t column_blocks(const PackLayout& layout) {
  return (layout.cols + layout.n_block - 1) / layout.n_block;
}
int64_t row_blocks(const PackLayout& layout) {
  return (layout.inner + layout.k_block - 1) / layout.k_block;
}

void pack_transposed(void* packed, const PackLayout& layout, DType dtype, Source source,
                     int64_t n_block_index, const PackHints& hints) {
  HWY_DYNAMIC_DISPATCH(PackTransposed)(packed, layout, dtype, source, n_block_index, hints);
}

void pack_straight(void* packed, const PackLayout& layout, DType dtype, Source source,
                   int64_t source_rows, int64_t k_block_index, const PackHints& hints) {
  HWY_DYNAMIC_DISPATCH(PackStraight)
  (packed, layout, dtype, source, source_rows, k_block_index, hints);
}

void finish_streams() { hwy::FlushStream(); }

void transpose(void* out, DType dtype, Source source, int64_t rows, int64_t cols,
               int64_t padded_rows, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Transpose)(out, dtype, source, rows, cols, padded_rows, scratch);
}

void convert_matrix(void* out, DType out_dtype, int64_t out_stride, Source source, int64_t rows,
                    int64_t cols, bool add) {
  HWY_DYNAMIC_DISPATCH(ConvertMatrix)(out, out_dtype, out_stride, source, rows, cols, add);
}

}  // namespace moe::ops
#endif  // HWY_ONCE
