# SPDX-License-Identifier: Apache-2.0
# Completion of scalai for bash.  Subcommands and options are those that `scalai --help` prints; jobs are the folders of the mount.
_scalai() {
	local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} sub=${COMP_WORDS[1]} mount words i
	COMPREPLY=()
	if [ "$COMP_CWORD" = 1 ]; then
		words="$(scalai --help 2>/dev/null | sed -n 's/^  \([a-z]\{1,\}\) .*/\1/p') --help --version"
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$now")
		return
	fi
	if [[ $now == -* ]]; then
		words=$(scalai "$sub" --help 2>/dev/null | sed -n 's/^  \(-[a-z]\)\?,\? *\(--[a-z-]*\)\?.*/\1 \2/p')
		mapfile -t COMPREPLY < <(compgen -W "$words --help" -- "$now")
		return
	fi
	if [ "$before" = --topology ] || [ "$before" = --step ] || [ "$before" = -o ]; then
		return
	fi
	mount=${SCALAI_MOUNT:-$(findmnt -n -o TARGET -t fuse.scalai 2>/dev/null | head -n 1)}
	for ((i = 2; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in -m | --mount) mount=${COMP_WORDS[i + 1]} ;; esac
	done
	case $sub in
	status | verify | clone | delete)
		[ -z "$mount" ] || mapfile -t COMPREPLY < <(cd "$mount" 2>/dev/null && compgen -d -- "$now")
		;;
	umount) mapfile -t COMPREPLY < <(compgen -W "$(findmnt -n -o TARGET -t fuse.scalai 2>/dev/null)" -- "$now") ;;
	data) [ "$COMP_CWORD" != 2 ] || mapfile -t COMPREPLY < <(compgen -W "add remove refresh show" -- "$now") ;;
	cluster) [ "$COMP_CWORD" != 2 ] || mapfile -t COMPREPLY < <(compgen -W "show backup rebuild" -- "$now") ;;
	esac
}
complete -o bashdefault -o default -F _scalai scalai
