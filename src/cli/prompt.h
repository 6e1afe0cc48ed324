// Where a prompt comes from: -p TEXT, -p - (standard input) or --file FILE.
#pragma once

#include <string>

#include "options/read.h"

namespace moe::cli {

struct PromptFlags {
  std::string text, file;
};
FieldList fields(PromptFlags&);
// The prompt. One line end at the end of what is read goes, since files and `echo` end in one that nobody means to be continued. Fails where none was named or
// both were (usage), for a file or an input that is empty, binary or no UTF-8.
std::string read_prompt(const PromptFlags& flags, const Given& given);

}  // namespace moe::cli
