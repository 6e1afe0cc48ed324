# moe_assets(TARGET HEADER FUNCTION FOLDER): turns the files of a folder into one generated source
# with `std::string_view FUNCTION(std::string_view name)`, declared in HEADER, so that the command can
# be copied anywhere.
function(moe_assets target header function folder)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*)
  set(rows "")
  foreach(file ${files})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME)
    file(READ ${file} text)
    string(APPEND rows "  if (name == \"${name}\") return R\"asset(${text})asset\";\n")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${function}.cpp)
  file(GENERATE OUTPUT ${source} CONTENT
"#include \"${header}\"

#include \"core/error.h\"

namespace moe {

std::string_view ${function}(std::string_view name) {
${rows}  fail(\"${folder} has no part called '{}'\", name);
}

}  // namespace moe
")
  target_sources(${target} PRIVATE ${source})
endfunction()
