# Turns share/report/* (the style and the script of the report) into one generated source, so that a
# report can be written wherever the command is copied to.
file(GLOB report_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/share/report/*)
set(report_rows "")
foreach(report_file ${report_files})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${report_file})
  get_filename_component(report_name ${report_file} NAME)
  file(READ ${report_file} report_text)
  string(APPEND report_rows
    "  if (name == \"${report_name}\") return R\"asset(${report_text})asset\";\n")
endforeach()
file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/report_assets.cpp CONTENT
"#include \"analyze/pages/report_assets.h\"

#include \"core/error.h\"

namespace moe {

std::string_view report_asset(std::string_view name) {
${report_rows}  fail(\"the report has no part called '{}'\", name);
}

}  // namespace moe
")
target_sources(moe_analyze PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/report_assets.cpp)
