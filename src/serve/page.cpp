#include "serve/page.h"

#include <fmt/format.h>

#include "analyze/pages/report_assets.h"
#include "analyze/pictures/report_colours.h"
#include "serve/page_assets.h"

namespace moe::serve {

std::string page_html(int64_t experts) {
  return fmt::format(
      R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>moe serve</title><link rel="icon" href="data:,"><style>
{}{}{}</style></head><body>
{}<script>
{}{}</script></body></html>
)",
      theme_style(experts), report_asset("report.css"), page_asset("page.css"),
      page_asset("page.html"), page_asset("talk.js"), page_asset("page.js"));
}

std::string page_policy() {
  return "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "
         "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
}

}  // namespace moe::serve
