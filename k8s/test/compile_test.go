package test

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
)

// An API server of the oldest version that docs/kubernetes.md names, 1.35, accepts each
// expression: it accepts no new one that the version before it would not know.
func TestExpressionsCompileInTheOldestVersion(t *testing.T) {
	for _, object := range append(manifest(t, "inject/mutating.yaml"), manifest(t, "inject/validating.yaml")...) {
		compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 34)))
		if err != nil {
			t.Fatal(err)
		}
		options := cel.OptionalVariableDeclarations{HasAuthorizer: true}
		check := func(expression cel.ExpressionAccessor) {
			if err := compiler.CompileCELExpression(expression, options, environment.NewExpressions).Error; err != nil {
				t.Errorf("%v\n%s", err, expression.GetExpression())
			}
		}
		// The conditions come before the variables, which they cannot use.
		before := func(conditions []admissionv1.MatchCondition, variables []admissionv1.Variable) {
			for i := range conditions {
				check((*matchconditions.MatchCondition)(&conditions[i]))
			}
			for _, v := range variables {
				if err := compiler.CompileAndStoreVariable(&mutating.Variable{Name: v.Name, Expression: v.Expression}, options, environment.NewExpressions).Error; err != nil {
					t.Errorf("%s: %v\n%s", v.Name, err, v.Expression)
				}
			}
		}
		switch policy := object.(type) {
		case *admissionv1.MutatingAdmissionPolicy:
			before(policy.Spec.MatchConditions, policy.Spec.Variables)
			options.HasPatchTypes = true
			check(&patch.JSONPatchCondition{Expression: policy.Spec.Mutations[0].JSONPatch.Expression})
		case *admissionv1.ValidatingAdmissionPolicy:
			before(policy.Spec.MatchConditions, policy.Spec.Variables)
			for _, v := range policy.Spec.Validations {
				check(&validating.ValidationCondition{Expression: v.Expression})
				if v.MessageExpression != "" {
					check(&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression})
				}
			}
		}
	}
}
