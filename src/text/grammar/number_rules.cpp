// Numbers, free ones and those of a range. A range of whole numbers is told by digits: of numbers
// with as many digits as each other, the first digit that differs decides.
#include <algorithm>
#include <string>

#include "text/grammar/json_rules.h"

namespace moe::grammar {
namespace {

int64_t power_of_ten(int exponent) {
  int64_t out = 1;
  while (exponent-- > 0) out *= 10;
  return out;
}

int digits_of(int64_t number) { return static_cast<int>(std::to_string(number).size()); }

}  // namespace

RuleId JsonRules::make_digit() { return b_->rule({{b_->bytes(ByteSet('0', '9'))}}); }

RuleId JsonRules::make_any_number() {
  const Symbol sign = Builder::ref(b_->rule({{}, b_->text("-")}));
  const RuleId whole =
      b_->rule({b_->text("0"), {b_->bytes(ByteSet('1', '9')), digits(0, kMostDigits - 1)}});
  const RuleId fraction = b_->rule({{}, {b_->bytes(ByteSet(".")), digits(1, kMostDecimals)}});
  const Symbol e = b_->bytes(ByteSet("eE"));
  const RuleId exponent =
      b_->rule({{}, {e, digits(1, 2)}, {e, b_->bytes(ByteSet("+-")), digits(1, 2)}});
  return b_->rule({{sign, Builder::ref(whole), Builder::ref(fraction), Builder::ref(exponent)}});
}

// Adds what lies between two numbers of as many digits.
void JsonRules::one_of_length(RuleId rule, std::string_view low, std::string_view high) {
  const auto add = [&](std::string_view prefix, int from, int to) {
    if (from > to) return;
    Sequence sequence = b_->text(prefix);
    sequence.push_back(b_->bytes(ByteSet(from, to)));
    const auto rest = static_cast<uint32_t>(low.size() - prefix.size() - 1);
    if (rest > 0) sequence.push_back(digits(rest, rest));
    b_->add(rule, sequence);
  };
  const auto differ =
      static_cast<size_t>(std::mismatch(low.begin(), low.end(), high.begin()).first - low.begin());
  b_->add(rule, b_->text(low));
  if (differ == low.size()) return;
  b_->add(rule, b_->text(high));
  add(low.substr(0, differ), low[differ] + 1, high[differ] - 1);
  for (size_t i = differ + 1; i < low.size(); ++i) {
    add(low.substr(0, i), low[i] + 1, '9');
    add(high.substr(0, i), '0', high[i] - 1);
  }
}

// Adds the whole numbers from `low` to `high`, both at least 0.
void JsonRules::whole_between(RuleId rule, int64_t low, int64_t high) {
  if (low > high) return;
  if (low == 0) {
    b_->add(rule, b_->text("0"));
    if (high == 0) return;
    low = 1;
  }
  // numbers of so many digits are all in the range
  const int from = digits_of(low) + (low == power_of_ten(digits_of(low) - 1) ? 0 : 1);
  const int to = digits_of(high) - (high == power_of_ten(digits_of(high)) - 1 ? 0 : 1);
  if (from <= to)
    b_->add(rule, {b_->bytes(ByteSet('1', '9')),
                   digits(static_cast<uint32_t>(from - 1), static_cast<uint32_t>(to - 1))});
  for (int length = digits_of(low); length <= digits_of(high); ++length) {
    if (length >= from && length <= to) continue;
    const int64_t least = std::max(low, power_of_ten(length - 1));
    const int64_t most = std::min(high, power_of_ten(length) - 1);
    one_of_length(rule, std::to_string(least), std::to_string(most));
  }
}

RuleId JsonRules::integer(const NumberRange& range) {
  const int64_t low = range.low + (range.low_open ? 1 : 0);
  const int64_t high = range.high - (range.high_open ? 1 : 0);
  const RuleId made = b_->rule();
  if (high >= 0) whole_between(made, std::max<int64_t>(low, 0), high);
  if (low < 0) {
    const RuleId size = b_->rule();
    whole_between(size, std::max<int64_t>(-high, 1), -low);
    b_->add(made, {b_->bytes(ByteSet("-")), Builder::ref(size)});
  }
  return made;
}

// Adds the decimals from `low` to `high`, both at least 0. A number below an open end must not
// become that end when it is read as a double, which tells 15 digits apart.
void JsonRules::fractions_between(RuleId rule, int64_t low, bool low_open, int64_t high,
                                  bool high_open) {
  const Symbol point = b_->bytes(ByteSet("."));
  const RuleId zero = b_->rule({b_->text("0")});
  int most = 9;
  if (low_open) most = std::min(most, 15 - digits_of(low));
  if (high_open) most = std::min(most, 15 - digits_of(high));
  const auto decimals = static_cast<uint32_t>(std::max(most, 1));
  const RuleId zeros = b_->rule({{}, {point, Builder::repeat(zero, 1, decimals)}});
  const auto add_exactly = [&](int64_t number, RuleId rest) {
    Sequence sequence = b_->text(std::to_string(number));
    sequence.push_back(Builder::ref(rest));
    b_->add(rule, sequence);
  };
  if (low == high && !low_open && !high_open) add_exactly(low, zeros);
  if (low >= high) return;
  const RuleId fraction = b_->rule({{}, {point, digits(1, decimals)}});
  // the last decimal that is not 0, at each of its places
  const RuleId above = b_->rule();
  for (uint32_t place = 0; place < decimals; ++place) {
    Sequence sequence = {point};
    if (place > 0) sequence.push_back(Builder::repeat(zero, place, place));
    sequence.push_back(b_->bytes(ByteSet('1', '9')));
    if (place + 1 < decimals) sequence.push_back(digits(0, decimals - place - 1));
    b_->add(above, sequence);
  }
  add_exactly(low, low_open ? above : fraction);
  const RuleId between = b_->rule();
  whole_between(between, low + 1, high - 1);
  b_->add(rule, {Builder::ref(between), Builder::ref(fraction)});
  if (!high_open) add_exactly(high, zeros);
}

RuleId JsonRules::number(const NumberRange& range) {
  if (range.low == -kMostWhole && range.high == kMostWhole) return any_number();
  const RuleId made = b_->rule(), below = b_->rule();
  if (range.high >= 0)
    fractions_between(made, std::max<int64_t>(range.low, 0), range.low >= 0 && range.low_open,
                      range.high, range.high_open);
  if (range.low < 0) {
    const bool over_zero = range.high >= 0;
    fractions_between(below, over_zero ? 0 : -range.high, over_zero || range.high_open, -range.low,
                      range.low_open);
    b_->add(made, {b_->bytes(ByteSet("-")), Builder::ref(below)});
  }
  return made;
}

}  // namespace moe::grammar
