# The manual page and the shell completions: written by the built command itself, so that they say
# what --help says, and installed where man and the shells look.
if(NOT CMAKE_CROSSCOMPILING)
  include(GNUInstallDirs)
  set(docs ${CMAKE_CURRENT_BINARY_DIR}/docs)
  function(moe_writes file destination name)
    add_custom_command(
      OUTPUT ${docs}/${file}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${docs}
      COMMAND moe ${ARGN} > ${docs}/${file}
      DEPENDS moe
      VERBATIM)
    set_property(TARGET moe_package APPEND PROPERTY parts ${docs}/${file})
    install(FILES ${docs}/${file} DESTINATION ${destination} RENAME ${name} COMPONENT command)
  endfunction()
  moe_writes(moe.1 ${CMAKE_INSTALL_MANDIR}/man1 moe.1 man)
  moe_writes(moe.bash ${CMAKE_INSTALL_DATADIR}/bash-completion/completions moe completion bash)
  set(MOE_ZSH_COMPLETIONS ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING
    "Where zsh looks for completions")
  moe_writes(moe.zsh ${MOE_ZSH_COMPLETIONS} _moe completion zsh)
  moe_writes(moe.fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d moe.fish completion fish)
  get_property(parts TARGET moe_package PROPERTY parts)
  list(FILTER parts INCLUDE REGEX "^${docs}/")
  add_custom_target(moe_docs ALL DEPENDS ${parts})
  add_dependencies(moe_package moe_docs)
endif()
