// The rules of JSON texts that a model may write: RFC 8259, with little freedom where freedom lets
// a model go on for ever. Between tokens stands at most one space, or one line feed and some
// indentation; numbers have a bounded number of digits.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"

namespace moe::grammar {

constexpr int kMostDigits = 18;  // of whole numbers, which then fit into 64 bits
constexpr int64_t kMostWhole = 999'999'999'999'999'999;
constexpr int kMostDecimals = 17;

// Where numbers lie; an end that is not given is kMostWhole away.
struct NumberRange {
  int64_t low = -kMostWhole, high = kMostWhole;
  bool low_open = false, high_open = false;  // without the end itself
};

struct Member {
  std::string name;
  RuleId value;
  bool required;
};

// Makes rules in a Builder, each kind once.
class JsonRules {
 public:
  explicit JsonRules(Builder& builder) : b_(&builder) {}

  RuleId any();         // any value
  RuleId any_object();  // with any members
  RuleId any_string();
  RuleId any_number();
  RuleId boolean();
  RuleId null();
  // The value itself, in any layout.
  RuleId exactly(const nlohmann::ordered_json& value);

  // Of so many characters; an escape counts as one.
  RuleId string(uint32_t min, uint32_t max);
  // "date", "time", "date-time" (RFC 3339), "uuid"; nothing where the format is not known.
  std::optional<RuleId> formatted(std::string_view format);
  RuleId integer(const NumberRange&);
  // Without exponents where the range has an end.
  RuleId number(const NumberRange&);

  // `first`, then `rest`; of `first` as many as stand in an array of at least `min` elements have
  // to be there. Without `rest` nothing follows `first`.
  RuleId array(const std::vector<RuleId>& first, std::optional<RuleId> rest, uint32_t min,
               uint32_t max);
  // The members in their order, then any number of others with values of `others`, whose names are
  // none of the members'. The same name may come twice among the others: no grammar can tell.
  RuleId object(const std::vector<Member>& members, std::optional<RuleId> others);

 private:
  using Sequence = Builder::Sequence;
  RuleId once(std::optional<RuleId>& made, RuleId (JsonRules::*make)());
  RuleId make_any_object();
  RuleId make_any_string();
  RuleId make_any_number();
  RuleId make_space();
  RuleId make_character();
  RuleId make_digit();
  RuleId make_comma();
  RuleId make_colon();
  Symbol space() { return Builder::ref(once(space_, &JsonRules::make_space)); }
  Symbol comma() { return Builder::ref(once(comma_, &JsonRules::make_comma)); }
  Symbol colon() { return Builder::ref(once(colon_, &JsonRules::make_colon)); }
  Symbol character() { return Builder::ref(once(character_, &JsonRules::make_character)); }
  Symbol digit() { return Builder::ref(once(digit_, &JsonRules::make_digit)); }
  Symbol digits(uint32_t min, uint32_t max) { return Builder::repeat(digit().index, min, max); }
  Sequence member(Sequence name, RuleId value);
  RuleId other_names(const std::vector<std::string>& taken);
  void one_of_length(RuleId, std::string_view low, std::string_view high);
  void whole_between(RuleId, int64_t low, int64_t high);
  void fractions_between(RuleId, int64_t low, bool low_open, int64_t high, bool high_open);
  RuleId date();
  RuleId time();
  RuleId uuid();

  Builder* b_;
  std::optional<RuleId> any_, any_object_, any_string_, any_number_, space_, character_, digit_,
      comma_, colon_;
};

// Any JSON object.
std::shared_ptr<const Grammar> json_object_grammar();

}  // namespace moe::grammar
