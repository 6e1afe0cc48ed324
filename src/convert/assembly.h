// A model put together from the parameters of others, with the account of what became of each part.
// Most of it are views: whoever owns the sources keeps them alive as long as the result.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace moe {

// The numbers that went the same way.
struct PartFate {
  std::string part;    // "attention"
  std::string became;  // "copied"
  int64_t before = 0;  // numbers of the sources that went into it, or went away
  int64_t after = 0;   // numbers of the result
};

// As an account calls a part.
std::string_view words_of(Part);
// Whether the matrices can be views in one bank such as `to`, where they lie: of one type, without
// gaps.
bool can_be_bank(const Param& to, const std::vector<Tensor>& matrices);

class Assembly {
 public:
  // A model of this config; every parameter has to be given its numbers before finish().
  explicit Assembly(const ModelConfig& config)
      : model_(std::make_unique<Model>(config, Storage::bound)) {}

  Model& model() { return *model_; }
  // The same numbers: a view.  shapes alike
  void view(Param& to, const Param& from, const std::string& became = "copied");
  // A bank out of matrices that may lie anywhere: views of them where their type is one that views
  // can have, else f32 copies. Each is a matrix [F,D] of a bank [E,F,D], or a row [F] of vectors
  // [E,F].  `before`: how many numbers of the sources this uses up
  void bank(Param& to, const std::vector<Tensor>& matrices, const std::string& became,
            int64_t before);
  // Memory of the result's own, to be filled.
  Tensor own(Param& to, const std::string& became, int64_t before, DType dtype = DType::f32);
  // What no source has of the routers, of one layer or of all (-1): at 1 or 0, as it starts in a
  // new model.
  void start_routers(int64_t layer = -1);
  // Rows of a matrix or entries of a vector, in this order: an f32 copy.  to [n,...]; from [E,...]
  void rows(Param& to, const Param& from, std::span<const int64_t> chosen,
            const std::string& became);
  // Numbers of a source that are nowhere in the result.
  void drop(std::string_view part, const std::string& why, int64_t numbers);

  // Fails unless every parameter of the result was given its numbers once, and `sources` numbers
  // were accounted for.
  std::unique_ptr<Model> finish(int64_t sources);
  const std::vector<PartFate>& account() const { return account_; }

 private:
  void enter(std::string_view part, const std::string& became, int64_t before, int64_t after);
  void bind(Param& to, Tensor value, std::vector<const void*> places, const std::string& became,
            int64_t before);

  std::unique_ptr<Model> model_;
  std::vector<PartFate> account_;
};

// What is in a source what `to` is in the result; the second: of another part of it. Fails where
// the source has no such parameter.
const Param& source_of(const Param& to, const Model& source);
const Param& source_of(const Param& to, const Model& source, Part part);
// A dense model's config, without what it says of experts, of which the model has none.
ModelConfig without_experts(ModelConfig dense);
// How many numbers a model holds.
int64_t numbers_of(const Model&);
// A matrix of a bank, or a row of a bank of vectors.
Tensor expert_of(const Param&, int64_t e);
// out [n] f32 of a row-by-row view of any type.
void copy_numbers(float* out, const Tensor& from);

}  // namespace moe
