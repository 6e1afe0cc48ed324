// JSON schemas as grammars. Supported of JSON Schema (2020-12, and what older drafts call alike):
//   type, enum, const, anyOf, oneOf (as anyOf), allOf of one, $ref within the schema (within the
//   part that has an $id)
//   properties, required, additionalProperties; items, prefixItems, minItems, maxItems
//   minLength, maxLength, format (date, time, date-time, uuid)
//   minimum, maximum, exclusiveMinimum, exclusiveMaximum (of numbers that are not whole: whole
//   ends)
// Properties come in the schema's order. Everything else is refused by its name, never left out.
// Where a schema allows more than is of use, the grammar has less: without "type" the kinds of
// value that its other keywords speak of, whole numbers without a decimal point, strings of an enum
// as JSON is mostly written. So every text of the grammar satisfies the schema.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/grammar/grammar.h"

namespace moe::grammar {

constexpr size_t kMostSchemaBytes = size_t{128} << 10;

// Fails (usage), naming the keyword and where in the schema it stands, e.g. "response_format:
// #/properties/a/pattern is not supported". `where` opens every message.
std::shared_ptr<const Grammar> json_schema_grammar(std::string_view schema,
                                                   const std::string& where);

}  // namespace moe::grammar
