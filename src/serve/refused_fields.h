// Fields of a request that ask for what is not done here. They are refused, since a reply to one
// whose wish was passed over looks as if it had what was asked for.
#pragma once

#include <span>
#include <string>

#include "core/json.h"

namespace moe::serve {

struct RefusedField {
  const char* name;
  const char* why;           // or what has its place
  const char* nothing = "";  // a text by which it asks for nothing
  bool full_only = false;    // {} asks for nothing
};

// Throws an ApiError for the first that the object has, but where it asks for nothing: null, false,
// 0, "", [], RefusedField::nothing, and as it says {}.
void refuse_fields(const Json&, std::span<const RefusedField>);
void refuse_fields(const OrderedJson&, std::span<const RefusedField>);

// Throws an ApiError for a field that is none of the `known` and one edit from one of them that was
// not given: its wish would be passed over. Short names are left alone, since other servers have
// fields that lie so near (top_a).
void refuse_misspelled(std::span<const std::string> given, std::span<const std::string> known);

// Of completions and of chats: what other servers add to OpenAI's fields.
std::span<const RefusedField> refused_of_others();
// Of completions alone.
std::span<const RefusedField> refused_of_completions();
// Of chats alone.
std::span<const RefusedField> refused_of_chats();

}  // namespace moe::serve
