// A trained tensor: the truth, its gradient, and what a backend derives from it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace moe {

// What a backend makes of a parameter and keeps beside it, such as copies in the layout of its
// products: its own affair, made when it first needs it, gone with the parameter.
class Derived {
 public:
  struct Content {
    virtual ~Content() = default;
  };

  Derived() = default;
  ~Derived() { delete content_.load(); }
  Derived(Derived&& other) noexcept : content_(other.content_.exchange(nullptr)) {}
  Derived& operator=(Derived&& other) noexcept {
    delete content_.exchange(other.content_.exchange(nullptr));
    return *this;
  }

  // Null where nothing was kept yet.
  Content* get() const { return content_.load(std::memory_order_acquire); }
  // What is kept from now on: this, or what another thread was quicker to keep.
  Content& keep(std::unique_ptr<Content> content) const {
    Content* kept = nullptr;
    if (content_.compare_exchange_strong(kept, content.get(), std::memory_order_acq_rel))
      kept = content.release();
    return *kept;
  }

 private:
  mutable std::atomic<Content*> content_ = nullptr;  // owned
};

// What a parameter is for: decides its initial values, whether it is trained and whether it takes
// weight decay.
enum class Role : uint8_t {
  matrix,    // embeddings, projections, routers, experts
  residual,  // a matrix that writes into the residual stream
  norm,      // starts at one
  bias,      // starts at zero
  buffer,    // starts at zero; saved and loaded with the model, but moved by a rule of its own: no
             // gradient, no moments, no decay
};

// What it is in its model, which model/parameters.h lists: the part it belongs to, and which of
// that part's parameters it is.
enum class Part : uint8_t;
enum class ParamKind : uint8_t;

struct Param;

// Which of the pairs that these experts of a bank have (LowRankTerm) matrix e has, or -1.
inline int64_t pair_of(const std::vector<int64_t>& experts, int64_t e) {
  if (experts.empty()) return e;
  const auto at = std::lower_bound(experts.begin(), experts.end(), e);
  return at != experts.end() && *at == e ? at - experts.begin() : -1;
}

// What is added to a matrix wherever it is multiplied by: scale b a, which is never made (Hu et
// al., "LoRA", arXiv 2106.09685). The two halves are somebody else's, and are trained by
// themselves.
struct LowRankTerm {
  Param* a = nullptr;  // [r,I]; of a bank [P,r,I], or [r,I] for all its matrices
  Param* b = nullptr;  // [O,r] or [P,O,r]
  float scale = 1;
  // [P] those of a bank's matrices that have a pair, ascending; nothing is added to the others.
  // Empty: all E have one.
  std::vector<int64_t> experts = {};

  int64_t pair_of(int64_t e) const { return moe::pair_of(experts, e); }
};

// Rows that stand in the place of some of a table's own, wherever the table is looked up or is the
// head: those of tokens that are trained by themselves. They are somebody else's.
struct OwnRows {
  Param* rows = nullptr;          // [T,D] f32
  std::vector<int64_t> ids = {};  // [T] ascending: the rows of the table that they stand for

  // Which of them stands for row `id`, or -1.
  int64_t place_of(int64_t id) const {
    const auto at = std::lower_bound(ids.begin(), ids.end(), id);
    return at != ids.end() && *at == id ? at - ids.begin() : -1;
  }
};

// Matrices are stored as Hugging Face stores Linear weights, [out, in]; banks of experts put the
// expert first, [E, out, in].
struct Param {
  std::string name;  // e.g. "layers.0.ffn.experts.gate.weight": for files and messages; what it is
                     // say the next four
  Part part{};       // none: of no model
  ParamKind kind{};
  int64_t layer = -1;  // -1: of none
  Role role = Role::matrix;
  bool frozen = false;  // no gradient ever comes to it: what is made with it is only compared
  Tensor value;  // f32 master when training, owned by the Model; else of any dtype, perhaps a view
                 // of a mapped file that the Model keeps
  Tensor grad;   // f32, shape of value; empty = frozen; owned by the Model
  // What stands in grad counts as zero: whoever adds to it calls ops::settle_grad or writes. Saves
  // a pass over memory that would only store zeros.
  bool grad_is_zero = false;
  // Of a bank whose experts lie on several processes: value holds those from `first` on, of `of`.
  // of 0: it holds all.
  struct Share {
    int64_t first = 0, of = 0;
  } share;
  const LowRankTerm* term = nullptr;  // products are those of value + term; null: of value
  const OwnRows* own_rows = nullptr;  // of a table [V,D]; null: all rows are those of value
  uint64_t version = 1;               // raised by whoever writes `value`
  Derived derived;                    // from `value`, at whatever version a backend last looked

  bool is_matrix() const { return role == Role::matrix || role == Role::residual; }
  bool is_buffer() const { return role == Role::buffer; }
  bool is_trained() const { return !is_buffer() && !frozen; }
  bool is_bias() const { return role == Role::bias; }
  bool is_share() const { return share.of > 0; }
  // Whether what products and lookups take is not `value` alone.
  bool is_adapted() const { return term != nullptr || own_rows != nullptr; }
  // Of the bank on all processes: its shape and how many numbers it has. `data` has no meaning.
  Tensor whole() const {
    Tensor shape = value;
    if (is_share()) shape.shape[0] = share.of;
    return shape;
  }
  bool present() const { return !value.empty(); }
  // Gives it numbers that are only read: of any dtype, in memory that somebody else keeps. `places`
  // [E]: where each expert's matrix lies, when a file stores them apart; such a parameter is read
  // by expert() only.
  void bind(Tensor numbers, std::vector<const void*> places = {}) {
    value = numbers;
    if (!places.empty()) value.data = const_cast<void*>(places[0]);
    places_ = std::move(places);
    is_bound_ = true;
    touched();
  }
  bool is_bound() const { return is_bound_; }
  // Numbers that may be written, in memory that somebody else keeps, in the place of those that
  // were only read.
  void own(Tensor numbers) {
    value = numbers;
    places_.clear();
    is_bound_ = false;
    touched();
  }
  // Gives it a gradient in memory that somebody else keeps, whose numbers count as zero. `places`
  // [E]: where each expert's lies, when they lie apart; such a gradient is reached by
  // expert_grad() only.
  void bind_grad(Tensor sums, std::vector<void*> places = {}) {
    grad = sums;
    if (!places.empty()) grad.data = places[0];
    grad_places_ = std::move(places);
    grad_is_zero = true;
  }
  // As bind() was given them; empty: one after another in `value`.
  const std::vector<const void*>& places() const { return places_; }
  // [O,I]: matrix e of a bank [E,O,I]; the whole of a matrix [O,I], which is a bank of one.
  Tensor expert(int64_t e) const {
    Tensor matrix = value.matrix(e);
    if (!places_.empty()) matrix.data = const_cast<void*>(places_[static_cast<size_t>(e)]);
    return matrix;
  }
  // [O,I] likewise of the gradient.
  Tensor expert_grad(int64_t e) const {
    Tensor matrix = grad.matrix(e);
    if (!grad_places_.empty()) matrix.data = grad_places_[static_cast<size_t>(e)];
    return matrix;
  }
  void touched() { ++version; }

 private:
  std::vector<const void*> places_;
  std::vector<void*> grad_places_;
  bool is_bound_ = false;
};

}  // namespace moe
