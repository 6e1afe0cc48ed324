#include "ops/check.h"

#include <string>

#include "core/error.h"

namespace moe::ops {

void refuse(const char* op, const char* rule, std::initializer_list<Named> got) {
  std::string list;
  for (const Named& one : got)
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", one.name, describe(one.tensor));
  fail("{}: needs {}; got {}", op, rule, list);
}

void need_listed(const char* op, const GatheredRows& rows) {
  for (size_t i = 0; i < rows.row.size(); ++i)
    if (rows.row[i] < 0 || rows.row[i] >= rows.x.rows())
      fail("{}: row[{}] = {} is not a row of {}", op, i, rows.row[i], describe(rows.x));
}

}  // namespace moe::ops
