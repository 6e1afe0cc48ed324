#include "ops/cpu/check.h"

#include <string>

#include "core/error.h"

namespace moe::ops {

void refuse(const char* op, const char* rule, std::initializer_list<Named> got) {
  std::string list;
  for (const Named& one : got) list += fmt::format("{}{} {}", list.empty() ? "" : ", ", one.name, describe(one.tensor));
  fail("{}: needs {}; got {}", op, rule, list);
}

}  // namespace moe::ops
