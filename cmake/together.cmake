# MOE_TOGETHER compiles the sources of a folder several at a time, so that headers are read and
# templates made once for all of them: less work where everything is compiled once, more where one
# file is changed again and again.
# The kernels stay apart: Highway compiles each of their files once an instruction set.
# What a file has in its anonymous namespace must then have a name that no other file of its folder
# uses; the tests together/FOLDER see to it.
option(MOE_TOGETHER "Compile several sources at a time" OFF)

set(kTogether 10)  # sources at a time; more take more memory than scripts/jobs.sh counts on
# One name may come again, that of the flags of a verb: before each source MOE_SOURCE is defined as
# a word of its own.
set(before_each "#undef Flags
#define MOE_JOINED(a, b) a##b
#define MOE_JOIN(a, b) MOE_JOINED(a, b)
#define Flags MOE_JOIN(Flags_, MOE_SOURCE)")

function(moe_together target)
  if(MOE_TOGETHER)
    set_target_properties(${target} PROPERTIES
      UNITY_BUILD ON
      UNITY_BUILD_BATCH_SIZE ${kTogether}
      UNITY_BUILD_UNIQUE_ID MOE_SOURCE
      UNITY_BUILD_CODE_BEFORE_INCLUDE "${before_each}")
  endif()
endfunction()

# Reads all sources of the folder as one, whichever of them MOE_TOGETHER would take together.
function(moe_together_test name)
  get_target_property(sources moe_${name} SOURCES)
  set(text "")
  set(number 0)
  foreach(source ${sources})
    math(EXPR number "${number} + 1")
    string(APPEND text "#undef MOE_SOURCE
#define MOE_SOURCE source_${number}
${before_each}
#include \"${source}\"
")
  endforeach()
  set(all ${CMAKE_CURRENT_BINARY_DIR}/together/${name}.cpp)
  file(GENERATE OUTPUT ${all} CONTENT "${text}")
  add_test(NAME together/${name}
    COMMAND ${CMAKE_CXX_COMPILER} -fsyntax-only -w
      ${CMAKE_CXX20_STANDARD_COMPILE_OPTION} ${OpenMP_CXX_FLAGS}
      "-D$<JOIN:$<TARGET_PROPERTY:moe_${name},COMPILE_DEFINITIONS>,;-D>"
      "-I$<JOIN:$<TARGET_PROPERTY:moe_${name},INCLUDE_DIRECTORIES>,;-I>" ${all}
    COMMAND_EXPAND_LISTS)
  set_tests_properties(together/${name} PROPERTIES LABELS slow)  # the sanitizers add nothing to it
endfunction()
