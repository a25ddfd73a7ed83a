package cli

import (
	"strings"

	"github.com/urfave/cli/v3"
)

// insteadOf says what does the work of commands that people know from Terraform,
// Docker and their like and that are not here, by what stands behind "pinfold".
var insteadOf = map[string]string{
	// Terraform
	"get":       "There is nothing to fetch: modules are directories beside the files, and 'pinfold validate' reads them.",
	"import":    "An import block in the files takes it on record with the next apply; 'pinfold gc -adopt ID' takes back an instance that lost its record.",
	"login":     "There is nothing to log in to: pinfold works on this host, and pulls no images yet.",
	"logout":    "There is nothing to log out of: pinfold works on this host.",
	"providers": "There are none: what pinfold makes, it makes on this host. 'pinfold version' tells which it is.",
	"refresh":   "'pinfold apply -refresh-only' records what is seen on the host.",
	"taint":     "'pinfold apply -replace ADDRESS' makes a new instance of a sandbox.",
	"test":      "Conditions and check blocks in the files are tested by each 'pinfold plan'; 'pinfold validate' checks the files alone.",
	"untaint":   "Nothing is marked for replacement: 'pinfold apply' replaces what -replace names, and nothing else of that kind.",
	"workspace": "Give each configuration a state of its own with -state-dir and -run-dir.",
	// Docker and Compose
	"build":     "Sandboxes are made of the host's root or of a directory, source = \"dir:/PATH\" in an image block; 'pinfold image list' shows those in use.",
	"commit":    "The files of a sandbox stay with it; 'pinfold cp SANDBOX:PATH DIR' copies them out.",
	"container": "Sandboxes need no word before the command: 'pinfold list', 'pinfold stop SANDBOX'.",
	"create":    "Declare it in a *.hcl file; 'pinfold apply -no-start' makes it and does not start it.",
	"diff":      "'pinfold plan' shows what the files would change, 'pinfold drift' what the host did.",
	"down":      "'pinfold destroy' ends all that is recorded, 'pinfold stop SANDBOX' one.",
	"images":    "'pinfold image list' lists the images.",
	"info":      "'pinfold version' tells which pinfold this is.",
	"inspect":   "'pinfold describe SANDBOX' tells everything about one; with -json for programs.",
	"ls":        "'pinfold list' lists the sandboxes.",
	"network":   "'pinfold state list' lists networks, too, and 'pinfold state show network.NAME' tells of one; the network blocks in the files make them.",
	"networks":  "'pinfold state list' lists networks, too, and 'pinfold state show network.NAME' tells of one.",
	"port":      "'pinfold list' shows the ports that each sandbox has on the host.",
	"pull":      "There is nothing to pull: sandboxes are made of the host's root or of a directory. 'pinfold image list' shows which.",
	"push":      "Images are not pushed; 'pinfold state push' puts a state in its place.",
	"rename":    "A moved block in the files, or 'pinfold state mv FROM TO', gives it another address; its process goes on.",
	"restart":   "'pinfold stop SANDBOX', then 'pinfold start SANDBOX'. A restart block does it by itself.",
	"rm":        "Remove its block and apply, or 'pinfold destroy -target ADDRESS'.",
	"rmi":       "Remove the image block and apply; the directory it was made of stays. 'pinfold image list' shows who uses it.",
	"run":       "Declare it in a *.hcl file and apply; 'pinfold exec' runs a further command in one.",
	"ssh":       "'pinfold exec -it SANDBOX sh' opens a shell in one.",
	"shell":     "'pinfold exec -it SANDBOX sh' opens a shell in one.",
	"stats":     "'pinfold top' shows what sandboxes use; 'pinfold top -once' prints it once.",
	"status":    "'pinfold list' shows the sandboxes, 'pinfold describe SANDBOX' tells everything about one.",
	"system":    "'pinfold volume list' shows what volumes take, 'pinfold gc' removes what was left half-made.",
	"unpause":   "'pinfold resume SANDBOX' lets a paused one go on.",
	"up":        "'pinfold apply' makes what the files declare.",
	"update":    "Change the files: 'pinfold apply' updates what can be in place, and says what it costs.",
	"volumes":   "'pinfold volume list' lists the volumes.",
	// said without the word that stands before it here
	"backup":  "'pinfold state backup' copies what is recorded.",
	"copy":    "'pinfold cp SRC DST' copies files in and out.",
	"delete":  "Remove its block and apply, or 'pinfold destroy -target ADDRESS'.",
	"prune":   "'pinfold gc' removes what was left half-made.",
	"rebuild": "'pinfold state rebuild' makes a lost state anew.",
	"restore": "'pinfold state restore FILE' puts a backup in the place of the state.",
	"verify":  "'pinfold state verify' checks what is recorded.",

	"image build":    "An image is the host's root or a directory, source = \"dir:/PATH\" in an image block; fill the directory and 'pinfold apply'.",
	"image history":  "An image has no layers here. 'pinfold image show IMAGE' tells what it is.",
	"image import":   "Unpack it into a directory and declare that, source = \"dir:/PATH\" in an image block; then 'pinfold apply'.",
	"image inspect":  "'pinfold image show IMAGE' tells everything about one; with -json for programs.",
	"image load":     "Unpack it into a directory and declare that, source = \"dir:/PATH\" in an image block; then 'pinfold apply'.",
	"image ls":       "'pinfold image list' lists them.",
	"image prune":    "Nothing is stored of an image, so nothing is left of it. 'pinfold gc' removes what was left half-made of other things.",
	"image pull":     "There is nothing to pull: declare the host's root or a directory in an image block, and 'pinfold apply'. Registries are not supported yet.",
	"image push":     "Images are not pushed: they are the host's root or a directory of it. 'pinfold image list' shows which.",
	"image rm":       "Remove the image block and 'pinfold apply'; the directory it was made of stays.",
	"image save":     "An image is a directory of the host: 'pinfold image show IMAGE' tells which.",
	"image tag":      "An image's name is that of its block; a moved block in the files, or 'pinfold state mv FROM TO', gives it another.",
	"state delete":   "'pinfold state rm ADDRESS' forgets what is recorded and leaves it on the host.",
	"state ls":       "'pinfold state list' lists what is recorded.",
	"state move":     "'pinfold state mv FROM TO' gives it another address.",
	"state remove":   "'pinfold state rm ADDRESS' forgets what is recorded and leaves it on the host.",
	"volume create":  "Write a volume block in a *.hcl file and 'pinfold apply'.",
	"volume delete":  "Volumes go by plan: remove the block and 'pinfold apply', which says what data is lost.",
	"volume inspect": "'pinfold volume show VOLUME' tells everything about one; with -json for programs.",
	"volume ls":      "'pinfold volume list' lists them.",
	"volume prune":   "Volumes go by plan: remove the blocks and 'pinfold apply'. 'pinfold gc -dry-run' tells of those that are on no record.",
	"volume remove":  "Volumes go by plan: remove the block and 'pinfold apply', which says what data is lost.",
	"volume rename":  "A moved block in the files, or 'pinfold state mv FROM TO', gives it another address; its data stays.",
	"volume resize":  "A volume has no size of its own: it takes what its files take, as 'pinfold volume list' shows.",
	"volume rm":      "Volumes go by plan: remove the block and 'pinfold apply', which says what data is lost.",
	"volume update":  "Change its block in the files and 'pinfold apply'.",
}

// insteadOfFlag is the same for flags.
var insteadOfFlag = map[string]string{
	"list -a":         "'pinfold list' shows all of them, also those without a process.",
	"list -all":       "'pinfold list' shows all of them, also those without a process.",
	"list -q":         "'pinfold state list' prints the addresses alone, 'pinfold list -json' everything.",
	"apply -y":        "'pinfold apply -auto-approve' does not ask.",
	"apply -yes":      "'pinfold apply -auto-approve' does not ask.",
	"destroy -force":  "'pinfold destroy -auto-approve' does not ask.",
	"destroy -y":      "'pinfold destroy -auto-approve' does not ask.",
	"destroy -yes":    "'pinfold destroy -auto-approve' does not ask.",
	"apply -detach":   "'pinfold apply' ends when all runs; sandboxes go on without it.",
	"apply -d":        "'pinfold apply' ends when all runs; sandboxes go on without it.",
	"stop -t":         "'pinfold stop SANDBOX' waits as long as stop_grace in the files says.",
	"volume list -q":  "'pinfold state list' prints the addresses alone, 'pinfold volume list -json' everything.",
	"image list -q":   "'pinfold state list' prints the addresses alone, 'pinfold image list -json' everything.",
	"image list -a":   "'pinfold image list' shows all of them.",
	"image list -all": "'pinfold image list' shows all of them.",
}

// insteadOfAnywhere is the same for flags of Terraform's, whatever command they stand
// behind; insteadOfFlag goes before it.
var insteadOfAnywhere = map[string]string{
	"backend":             "The state is kept in the directory of -state-dir; there is no other place for it.",
	"backend-config":      "The state is kept in the directory of -state-dir; there is no other place for it.",
	"backup":              "The state is backed up each day by itself; 'pinfold state backup FILE' does so now.",
	"compact-warnings":    "Warnings are always told whole; -json has them, too.",
	"concise":             "Progress is a line for each step; -json leaves it out.",
	"generate-config-out": "Write the block, and an import block that names it; 'pinfold plan' then tells what of it differs.",
	"get":                 "There is nothing to fetch: modules are directories beside the files.",
	"lock":                "What writes the state always locks it, and what only looks waits for nobody; -lock-timeout=0 does not wait.",
	"migrate-state":       "The state stays in the directory of -state-dir; 'pinfold state pull' and 'pinfold state push' take it elsewhere.",
	"out":                 "'pinfold plan -out FILE' saves a plan, and 'pinfold apply FILE' carries it out.",
	"parallelism":         "Only 'pinfold apply' and 'pinfold destroy' do work that -parallelism could bound; the rest looks at the host at once.",
	"plugin-dir":          "There are no plugins: what pinfold makes, it makes on this host.",
	"reconfigure":         "There is no backend to set up: the state is kept in the directory of -state-dir.",
	"state":               "-state-dir=DIR names the directory in which the state is kept.",
	"state-out":           "The state is written where it is read; 'pinfold state pull' prints a copy.",
	"upgrade":             "There is nothing to upgrade: modules are directories beside the files, and what pinfold makes, it makes by itself.",
	"write":               "'pinfold fmt -check -diff' shows what would change and writes nothing.",
}

// behindProgram is a command's name with those it is under, and what follows it.
func behindProgram(cmd *cli.Command, more string) string {
	return strings.TrimPrefix(cmd.FullName()+" "+more, cmd.Root().Name+" ")
}

// noCommand finds the word that stands where a command is to be named and names none,
// and what it is not a command of. The parser itself complains of a flag behind it.
// nil: something else is wrong, or nothing.
func noCommand(root *cli.Command, words []string) (of *cli.Command, name string) {
	of = root
	for i := 0; i < len(words); i++ {
		if !strings.HasPrefix(words[i], "-") {
			next := of.Command(words[i])
			switch {
			case next == nil && len(of.Commands) > 0:
				return of, words[i]
			case next == nil:
				return nil, ""
			}
			of = next
			continue
		}
		name, _, inline := strings.Cut(strings.TrimLeft(words[i], "-"), "=")
		f := flagNamed(root, of, name)
		if f == nil {
			return nil, ""
		}
		if _, boolean := f.(*cli.BoolFlag); !boolean && !inline {
			i++
		}
	}
	return nil, ""
}
