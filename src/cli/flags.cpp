#include "cli/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_tree.h"
#include "hub/named_models.h"

namespace moe::cli {
namespace {

using Kind = Field::Kind;

// "-n,--tokens"
std::string flag_names(const Field& field) {
  if (field.positional) return field.name;
  std::string names;
  for (const std::string& other : field.also)
    if (other.size() == 1) names += "-" + other + ",";
  return names + flag_of(field.name);
}

bool is_list(const Field& field) {
  return field.kind == Kind::texts || field.kind == Kind::wholes || field.kind == Kind::weighted;
}

std::string type_of(const Field& field) {
  switch (field.kind) {
    case Kind::whole:
    case Kind::wholes: return "INT";
    case Kind::natural: return "UINT";
    case Kind::number: return "FLOAT";
    case Kind::boolean: return "BOOLEAN";
    case Kind::weighted: return field.form;
    default: return "TEXT";
  }
}

// What a word that is none of a field's values should have been.
std::string wanted_form(const Field& field) {
  switch (field.kind) {
    case Kind::whole: return "a whole number";
    case Kind::natural: return "a number from 0 to 2^64 - 1";
    case Kind::wholes: return "whole numbers with commas between them";
    case Kind::number: return "a number";
    case Kind::boolean: return "true or false";
    case Kind::weighted: return fmt::format("{}, as in {}", field.form, field.example);
    default: return "a text";
  }
}

// The value that --help shows; empty: none.
std::string shown_default(const Field& field) {
  if (!field.has_default || field.required) return "";
  const Json value = field.get();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.is_number() ? value.dump() : "";
}

CLI::Option* add_toggle(CLI::App& app, const std::shared_ptr<Field>& field, Given& given) {
  const auto take = [field, &given](int64_t count) {
    field->set(Json(count > 0));
    given.add(field->name, GivenBy::caller);
  };
  return app.add_flag_function(flag_names(*field), take, in_flags(field->help));
}

CLI::Option* add_valued(CLI::App& app, const std::shared_ptr<Field>& field, Given& given) {
  const auto take = [field, &given](CLI::results_t words) {
    // CLI11 2.4 marks "{}" as an empty list by a second word.
    if (words.size() == 2 && words[0] == "{}" && words[1] == "%%") words.pop_back();
    const std::optional<Json> value = parse_words(*field, words);
    if (!value)
      throw CLI::ValidationError(
          field->positional ? field->name : flag_of(field->name),
          fmt::format("'{}' is given; it takes {}", fmt::join(words, " "), wanted_form(*field)));
    field->set(*value);
    given.add(field->name, GivenBy::caller);
    return true;
  };
  CLI::Option* option =
      app.add_option(flag_names(*field), CLI::callback_t(take), in_flags(field->help));
  option->type_name(type_of(*field))->default_str(shown_default(*field))->required(field->required);
  if (is_list(*field))
    option->expected(CLI::detail::expected_max_vector_size)->allow_extra_args(!field->one_each);
  if (!field->values.empty()) takes(option, field->values);
  return option;
}

}  // namespace

std::string flag_of(std::string_view field_name) {
  std::string flag = "--" + std::string(field_name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string in_flags(std::string_view marked) { return spelled(marked, flag_of); }

void add_flags(CLI::App& app, FieldList list, Given& given) {
  for (Field& one : list) {
    if (one.recorded_only) continue;
    const auto field = std::make_shared<Field>(std::move(one));
    CLI::Option* option =
        field->kind == Kind::toggle ? add_toggle(app, field, given) : add_valued(app, field, given);
    if (!field->group.empty()) option->group(field->group);
  }
}

void add_model(FieldList& list, std::string& path) {
  list.add("MODEL", path, fmt::format("a model: {}", kModelIs)).positional().required();
}

void add_show_speed(FieldList& list, bool& show) {
  list.add("show_speed", show,
           "say on standard error how fast the prompt was read and the text written; moe bench "
           "measures it better");
}

}  // namespace moe::cli
