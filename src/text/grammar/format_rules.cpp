// Strings of a format: RFC 3339 for dates and times, RFC 4122 for UUIDs.
#include "text/grammar/json_rules.h"

namespace moe::grammar {

// Every date there is, so February has 29 days in years that 4 divides, except those that 100 and
// not 400 divides.
RuleId JsonRules::date() {
  const auto two_of = [&](auto&& wanted) {
    const RuleId made = b_->rule();
    for (int n = 0; n < 100; ++n)
      if (wanted(n))
        b_->add(made, b_->text(std::string{static_cast<char>('0' + n / 10),
                                           static_cast<char>('0' + n % 10)}));
    return made;
  };
  const auto days = [&](int most) {
    return Builder::ref(two_of([=](int n) { return n >= 1 && n <= most; }));
  };
  const auto month_of = [&](std::initializer_list<int> months) {
    return Builder::ref(two_of([&](int n) {
      for (const int month : months)
        if (n == month) return true;
      return false;
    }));
  };
  const Symbol dash = b_->bytes(ByteSet("-"));
  const RuleId day = b_->rule({{month_of({1, 3, 5, 7, 8, 10, 12}), dash, days(31)},
                               {month_of({4, 6, 9, 11}), dash, days(30)},
                               {month_of({2}), dash, days(28)}});
  const RuleId two = two_of([](int) { return true; });
  const RuleId fours = two_of([](int n) { return n % 4 == 0; });
  const RuleId later_fours = two_of([](int n) { return n % 4 == 0 && n != 0; });
  const RuleId made = b_->rule({{digits(4, 4), dash, Builder::ref(day)}});
  Sequence leap = {Builder::ref(two), Builder::ref(later_fours)};
  b_->text(leap, "-02-29");
  b_->add(made, leap);
  leap = {Builder::ref(fours)};
  b_->text(leap, "00-02-29");
  b_->add(made, leap);
  return made;
}

RuleId JsonRules::time() {
  const Symbol colon = b_->bytes(ByteSet(":"));
  const Symbol hour =
      Builder::ref(b_->rule({{b_->bytes(ByteSet("01")), digit()},
                             {b_->bytes(ByteSet("2")), b_->bytes(ByteSet('0', '3'))}}));
  const Symbol sixty = Builder::ref(b_->rule({{b_->bytes(ByteSet('0', '5')), digit()}}));
  const Symbol fraction = Builder::ref(b_->rule({{}, {b_->bytes(ByteSet(".")), digits(1, 9)}}));
  const Symbol zone =
      Builder::ref(b_->rule({b_->text("Z"), {b_->bytes(ByteSet("+-")), hour, colon, sixty}}));
  return b_->rule({{hour, colon, sixty, colon, sixty, fraction, zone}});
}

RuleId JsonRules::uuid() {
  const RuleId hex = b_->rule({{b_->bytes(ByteSet("0123456789ABCDEFabcdef"))}});
  Sequence sequence;
  for (const uint32_t count : {8u, 4u, 4u, 4u, 12u}) {
    if (!sequence.empty()) b_->text(sequence, "-");
    sequence.push_back(Builder::repeat(hex, count, count));
  }
  return b_->rule({sequence});
}

std::optional<RuleId> JsonRules::formatted(std::string_view format) {
  Sequence inside;
  if (format == "date") inside = {Builder::ref(date())};
  else if (format == "time") inside = {Builder::ref(time())};
  else if (format == "uuid") inside = {Builder::ref(uuid())};
  else if (format == "date-time")
    inside = {Builder::ref(date()), b_->bytes(ByteSet("T")), Builder::ref(time())};
  else return std::nullopt;
  const Symbol quote = b_->bytes(ByteSet("\""));
  inside.insert(inside.begin(), quote);
  inside.push_back(quote);
  return b_->rule({inside});
}

}  // namespace moe::grammar
