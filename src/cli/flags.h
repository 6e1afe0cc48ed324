// The fields of an option list (options/fields.h) as the flags and words of a command line.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <string_view>

#include "options/read.h"

namespace moe::cli {

// What a field is called on the command line: "--min-lr" for "min_lr".
std::string flag_of(std::string_view field_name);
// A message of the library with its fields as flags.
std::string in_flags(std::string_view marked);

// Adds each field of the list as an option of `app`. The line writes to what the list views, and
// its names to `given`: both must outlive the parse.
void add_flags(CLI::App& app, FieldList list, Given& given);

// MODEL, which a line must name.
void add_model(FieldList& list, std::string& path);
// Whether verbs that write text say how fast they did.
void add_show_speed(FieldList& list, bool& show);

}  // namespace moe::cli
